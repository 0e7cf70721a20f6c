#include "after_step.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/model/transformer.h"
#include "lancet/ops/catalogue.h"
#include "lancet/profiler/profiler.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/step_costs.h"

namespace lancet::train {
namespace {

// 0 of an empty whole: a tally without tokens has neither drops nor uneven loads.
double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::int64_t tokens_of(const config::Config& config) { return config.train.micro_batch_size * config.train.seq_len; }

// The slots of all experts for the tokens of a micro batch of a rank.
std::int64_t slots_of(const config::Config& config, std::int64_t experts) {
  const std::int64_t tokens = tokens_of(config);
  const std::int64_t groups = config.train.micro_batch_size / config.group_sequences();
  return experts * groups *
         model::capacity(config.model.kept_factor(), tokens / groups, experts, config.model.num_experts_per_tok);
}

constexpr std::int64_t most_recorded = 16;  // steps between two comparisons whose counts are kept

// The micro batch of the program in which the tensor was made. What closes the step belongs to the last one.
std::int32_t micro_batch_of(const ir::Program& program, const runtime::NonFinite& found) {
  if (!found.instruction.valid()) return 0;
  const std::size_t i = found.instruction.index();
  return ir::closes_step(program)[i] ? ir::micro_batches(program) - 1 : program.instructions[i].micro_batch;
}

// Collective: the spans of all ranks, indexed by rank, on rank 0. The ranks of a stage are consecutive.
Result<std::vector<std::vector<runtime::Span>>> gather_spans(comm::Communicator& world,
                                                             std::span<const ir::Plan> stages,
                                                             std::span<const runtime::Span> mine) {
  const auto ranks = std::size_t(world.size());
  std::vector<std::vector<runtime::Span>> all;
  std::vector<runtime::Span> sent(mine.begin(), mine.end());
  std::vector<comm::Segment> receives;
  const comm::Segment send{0, reinterpret_cast<std::byte*>(sent.data()), sent.size() * sizeof(runtime::Span)};
  for (std::size_t rank = 0; world.rank() == 0 && rank < ranks; ++rank)
    all.emplace_back(stages[rank * stages.size() / ranks].program.instructions.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    receives.push_back(
        {int(rank), reinterpret_cast<std::byte*>(all[rank].data()), all[rank].size() * sizeof(runtime::Span)});
  LANCET_TRY(world.send_receive(std::span(&send, 1), receives));
  return all;
}

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

std::vector<std::vector<double>> StepTally::chosen() const {
  std::vector<std::vector<double>> layers;
  for (auto first = chosen_.begin(); first != chosen_.end(); first += std::ptrdiff_t(experts_))
    layers.emplace_back(first, first + std::ptrdiff_t(experts_));
  return layers;
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

ProductFlops product_flops(const ir::Program& program) {
  ProductFlops total;
  for (const ir::Instruction& instruction : program.instructions) {
    const ops::Kind kind = ops::kind(instruction);
    if (kind != ops::Kind::product && kind != ops::Kind::attention) continue;
    if (instruction.role == ir::Role::recompute) continue;  // MFU counts what the model needs
    (ops::is_over_expert_rows(instruction) ? total.experts : total.dense) += ops::work(program, instruction).flops;
  }
  return total;
}

Status StepSpeed::measure_peak(comm::Communicator& world, const RankResources& resources,
                               const std::string& profile_folder) {
  runtime::Accelerator* const accelerator = resources.accelerator;
  // The largest FLOP/s that were measured on this machine. Only rank 0 reports MFU.
  const auto largest = [&](double measured) {
    if (world.rank() != 0) return measured;
    const cost::Machine machine = run::machine_of(config_, world, resources.local_ranks, accelerator);
    return 1e12 * run::largest_peak_tflops(config_, machine, profile_folder, measured * 1e-12);
  };
  if (config_.log.peak_tflops) {
    peak_ = {*config_.log.peak_tflops * 1e12, "log.peak_tflops"};
    return {};
  }
  if (resources.emulated) {
    const cost::Hardware::Device& device = resources.emulated->hardware().device;
    peak_ = {(config_.train.dtype == DType::bf16 ? device.bf16_tflops : device.fp32_tflops) * 1e12, "declared"};
    return {};
  }
  if (accelerator) {  // without a measured peak, MFU is left out
    const auto flops = profiler::measure_product_peak(*accelerator, config_.train.dtype);
    if (!flops.ok()) log::warn("peak: not measured: {}", flops.error().message);
    peak_ = {largest(flops.ok() ? *flops : 0), "measured on an 8192^3 product"};
    return world.barrier();
  }
  LANCET_TRY(world.barrier());  // all ranks of a host at once, as in a step
  peak_ = {largest(profiler::measure_product_peak(config_.train.dtype, resources.threads)),
           "measured on a 1024^3 product"};
  return world.barrier();
}

void StepSpeed::set_plans(const run::StepPlans& plans) {
  predicted_ms_ = run::predicted_ms(plans.steps, config_.train.gradient_accumulation_steps);
  flops_ = {};
  for (const ir::Plan& stage : plans.steps) {  // the mean of the stages, as the peak is that of all ranks
    const auto of_stage = product_flops(stage.program);
    flops_.dense += of_stage.dense / double(plans.steps.size());
    flops_.experts += of_stage.experts / double(plans.steps.size());
  }
  micro_batches_ = ir::micro_batches(plans.step().program);
}

double StepSpeed::tokens() const {
  const config::Train& train = config_.train;
  return double(train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps) *
         config::batch_ranks(config_, ranks_);
}

void StepSpeed::fill(run::StepRecord& record, double seconds, const StepTally& tally) const {
  record.step_ms = seconds * 1e3;
  record.predicted_ms = predicted_ms_;
  record.tokens_per_s = tokens() / seconds;
  const double runs = double(config_.train.gradient_accumulation_steps) / double(micro_batches_);
  const double flops = runs * (flops_.dense + kept_share(tally) * flops_.experts);
  if (peak_.flops > 0) record.mfu = 100 * flops / seconds / peak_.flops;
}

double even_share(const config::Config& config, std::int64_t experts) {
  const std::int64_t slots = slots_of(config, experts);
  return std::min(1.0, double(slots) / double(model::choices_of(config.model, tokens_of(config), slots)));
}

double StepSpeed::kept_share(const StepTally& tally) const {
  if (tally.layers().empty()) return 0;
  const config::Train& train = config_.train;
  const auto layers = double(tally.layers().size()), micro_batches = double(train.gradient_accumulation_steps);
  const auto experts = std::int64_t(tally.experts());
  const double choices = double(model::choices_of(config_.model, tokens_of(config_), slots_of(config_, experts))) *
                         double(config::batch_ranks(config_, ranks_)) * layers * micro_batches;
  return tally.kept() / (even_share(config_, experts) * choices);
}

Replanning::Replanning(const config::Config& config, const cost::Layout& layout, bool has_plan_file,
                       const checkpoint::LoadHistory& history)
    : interval_(layout.ranks > 1 && config.overlap.policy != "sequential" && !has_plan_file ? config.overlap.replan
                                                                                            : 0),
      last_step_(config.train.steps),
      micro_batches_(config.train.gradient_accumulation_steps),
      model_(interval_ > 0 ? run::routed_model(config, layout) : cost::RoutedModel()),
      history_(history) {}

std::shared_ptr<const cost::Loads> Replanning::loads_of(const checkpoint::LoadHistory::Counts& counts) const {
  return counts.empty() ? nullptr : std::make_shared<const cost::Loads>(cost::Loads::recorded(model_, counts));
}

Result<std::optional<Replanning::Departure>> Replanning::after_step(std::int64_t step, const StepTally& tally,
                                                                    const run::StepPlans& plans,
                                                                    comm::Communicator& world) {
  if (interval_ == 0) return std::optional<Departure>();
  const std::int64_t every = (interval_ + most_recorded - 1) / most_recorded;
  if (history_.steps++ % every == 0) history_.recorded.push_back(tally.chosen());
  if (step % interval_ != 0 || step >= last_step_) return std::optional<Departure>();
  Departure departure{loads_of(history_.recorded)};
  LANCET_ASSIGN(departure.predicted_ms, run::predicted_ms(plans, micro_batches_, departure.loads));
  double expected_ms = *run::predicted_ms(plans.steps, micro_batches_);
  if (const auto compared = loads_of(history_.compared)) {
    LANCET_ASSIGN(expected_ms, run::predicted_ms(plans, micro_batches_, compared));
  }
  // The counts are sums over the ranks and the costs are the same on all, so that the ranks find the same. Where the
  // prediction has changed by less, the load has not left the planned one as far as the simulator can tell.
  LANCET_ASSIGN(const bool departs,
                comm::any(world, std::abs(departure.predicted_ms / expected_ms - 1) > planner::prediction_error));
  if (departs) history_.compared = history_.recorded;
  history_.recorded.clear();
  history_.steps = 0;
  return departs ? std::optional(departure) : std::nullopt;
}

void Replanning::set_planned(bool taken) {
  if (taken) history_.planned = history_.compared;
}

Result<std::string> find_non_finite_cause(const config::Config& config, comm::Communicator& world,
                                          const ir::Program& program, int runs, const SearchRun& search) {
  for (int run = 0; run < runs; ++run) {
    LANCET_ASSIGN(const auto found, search(run));
    constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();
    LANCET_ASSIGN(const auto places, comm::collect(world, found ? found->place : nowhere));
    const auto first = std::min_element(places.begin(), places.end());
    if (*first == nowhere) continue;
    const int rank = static_cast<int>(first - places.begin());
    std::string mine =
        found ? fmt::format("micro batch {}: {}", run * ir::micro_batches(program) + micro_batch_of(program, *found),
                            runtime::to_string(program, *found))
              : "";
    if (found && !found->instruction.valid() && config.train.clip_grad == 0 &&
        config.train.on_non_finite == config::OnNonFinite::stop)
      mine += "; it may be a consequence: without train.clip_grad the step's updates do not wait for the norm";
    LANCET_ASSIGN(const std::string text, broadcast_text(world, mine, rank));
    return fmt::format("first not finite on rank {} in {}", rank, text);
  }
  return std::string("every tensor is finite when the step is run again");
}

Result<std::string> trace_ranks(const config::Config& config, comm::Communicator& world,
                                std::span<const ir::Plan> stages, std::span<const runtime::Span> mine) {
  if (config.comm.transport == config::Transport::mirrored) {  // other ranks do not exist
    const std::vector<runtime::Span> one(mine.begin(), mine.end());
    return runtime::trace_json(stages, std::span(&one, 1));
  }
  LANCET_ASSIGN(const auto spans, gather_spans(world, stages, mine));
  if (world.rank() != 0) return std::string();
  return runtime::trace_json(stages, spans);
}

}  // namespace lancet::train
