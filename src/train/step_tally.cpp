#include "step_tally.h"

#include <algorithm>
#include <numeric>

namespace lancet::train {
namespace {

// 0 of an empty whole: a tally without tokens has neither drops nor uneven loads.
double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

StepTally::StepTally(std::size_t layers, std::size_t experts)
    : experts_(experts),
      chosen_(layers * experts),
      kept_(layers * experts),
      entropy_(layers),
      z_loss_(layers),
      bias_spread_(layers),
      layers_(layers) {}

void StepTally::clear() {
  times_ = {};
  rounds_.reset();
  for (std::vector<double>* sums : {&chosen_, &kept_, &entropy_}) std::fill(sums->begin(), sums->end(), 0);
  for (auto* numbers : {&z_loss_, &bias_spread_}) std::fill(numbers->begin(), numbers->end(), std::nullopt);
}

void StepTally::add(const LayerOutputs& layers) {
  for (const std::int32_t* rounds : layers.rounds) rounds_ = std::max(rounds_.value_or(0), std::int64_t(*rounds));
  for (std::size_t layer = 0; layer < layers.aux.size(); ++layer) entropy_[layer] += layers.aux[layer][1];
  for (std::size_t layer = 0; layer < layers.z_loss.size(); ++layer)
    z_loss_[layer] = z_loss_[layer].value_or(0) + double(*layers.z_loss[layer]);
  for (std::size_t layer = 0; layer < layers.bias.size(); ++layer) {
    const auto [least, most] = std::ranges::minmax(layers.bias[layer]);
    bias_spread_[layer] = double(most) - double(least);
  }
  for (std::size_t layer = 0; layer < layers.load.size(); ++layer) {
    const std::span load = layers.load[layer];
    for (std::size_t row = 0; row < load.size(); row += 2 * experts_)
      for (std::size_t e = 0; e < experts_; ++e) {
        chosen_[layer * experts_ + e] += load[row + e];
        kept_[layer * experts_ + e] += load[row + experts_ + e];
      }
  }
}

void StepTally::add(const runtime::StepTimes& times) {
  times_.compute += times.compute;
  times_.all_to_all += times.all_to_all;
  times_.all_reduce += times.all_reduce;
  times_.communication += times.communication;
  times_.exposed += times.exposed;
  times_.late += times.late;
}

double StepTally::kept() const { return std::accumulate(kept_.begin(), kept_.end(), 0.0); }

run::LayerLoad StepTally::load_of(std::size_t layer, double tokens) const {
  double most = 0, sum = 0, fitted = 0;
  std::int64_t unused = 0;
  for (std::size_t e = layer * experts_; e < (layer + 1) * experts_; ++e) {
    most = std::max(most, chosen_[e]);
    sum += chosen_[e];
    fitted += kept_[e];
    unused += chosen_[e] == 0;
  }
  return {.max_over_mean = share(most * double(experts_), sum),
          .drop_pct = 100 * share(sum - fitted, sum),
          .router_entropy = entropy_[layer],
          .dead_experts = unused,
          .expert_tokens = std::span(chosen_).subspan(layer * experts_, experts_),
          .experts_per_token = sum / tokens,
          .z_loss = z_loss_[layer],
          .bias_spread = bias_spread_[layer]};
}

cost::RankLoad StepTally::rank_load(int ranks, double even_share) const {
  cost::RankLoad mean{0, 0};
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto chosen = std::span(chosen_).subspan(layer * experts_, experts_);
    const auto kept = std::span(kept_).subspan(layer * experts_, experts_);
    const double tokens = even_share * std::accumulate(chosen.begin(), chosen.end(), 0.0);
    double most = 0;  // kept by the experts of one coordinate, on whichever of its ranks
    const auto each = std::ptrdiff_t(experts_) / ranks;
    for (auto first = kept.begin(); first != kept.end(); first += each)
      most = std::max(most, std::accumulate(first, first + each, 0.0));
    mean.fullest += most * ranks / tokens / double(layers_.size());
    mean.kept += std::accumulate(kept.begin(), kept.end(), 0.0) / tokens / double(layers_.size());
  }
  return mean;
}

void StepTally::fill(run::StepRecord& record, bool alone, double tokens) {
  record.compute_ms = times_.compute;
  record.a2a_ms = times_.all_to_all;
  record.allreduce_ms = times_.all_reduce;
  if (!alone) {
    record.communication_ms = times_.communication;
    record.exposed_ms = times_.exposed;
    if (times_.communication > 0) record.hidden_pct = 100 * (1 - times_.exposed / times_.communication);
  }
  if (layers_.empty()) return;
  double unevenness = 0, entropy = 0, choices = 0;
  std::int64_t dead = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer] = load_of(layer, tokens);
    unevenness += layers_[layer].max_over_mean;
    entropy += layers_[layer].router_entropy;
    dead += layers_[layer].dead_experts;
    choices += layers_[layer].experts_per_token;
    if (const auto& z = layers_[layer].z_loss) record.z_loss = record.z_loss.value_or(0) + *z;
    if (const auto& spread = layers_[layer].bias_spread)
      record.bias_spread = std::max(record.bias_spread.value_or(0), *spread);
  }
  const auto layers = double(layers_.size());
  record.load_max_over_mean = unevenness / layers;
  const double chosen = std::accumulate(chosen_.begin(), chosen_.end(), 0.0);
  record.drop_pct = 100 * share(chosen - kept(), chosen);
  record.dead_experts = dead;
  record.rounds = rounds_;
  record.router_entropy = entropy / layers;
  record.experts_per_token = choices / layers;
}

}  // namespace lancet::train
