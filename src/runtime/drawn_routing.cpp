// A token draws a uniform number by its place in the rank's micro batch, so a part of a micro batch draws what the
// whole draws. The experts divide [0, 1) among them by their shares, and the token chooses the expert in whose share
// its number is. For each further choice it draws another number, and the experts that it has not chosen yet divide
// [0, 1) among them. Experts that are not chosen have the score 0. The score of the first choice differs from token to
// token, because batch-prioritized gates order tokens by score.
#include "drawn_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numeric>

#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/random.h"

namespace lancet::runtime {
namespace {

constexpr double most_exponent = 10;
constexpr float least_score = 4;  // of the chosen expert: its probability is then near 1

std::vector<double> added_up(std::vector<double> shares) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  double sum = 0;
  for (double& share : shares) share = sum += share / total;
  shares.back() = 1;
  return shares;
}

Error refused(const std::string& file, const std::string& text) {
  return config_error(fmt::format("emulated.routing: {}: {}", file, text));
}

}  // namespace

Result<DrawnRouting> DrawnRouting::read(const std::string& text, const RoutedModel& model) {
  DrawnRouting routing(model);
  if (text == "even" || model.layers == 0) return routing;
  constexpr std::string_view zipf = "zipf:", trace = "trace:";
  if (text.starts_with(trace)) {
    LANCET_TRY(routing.read_trace(text.substr(trace.size())));
    return routing;
  }
  double exponent = -1;
  const std::string_view number = text.starts_with(zipf) ? std::string_view(text).substr(zipf.size()) : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), exponent);
  if (error != std::errc() || end != number.data() + number.size() || !(exponent >= 0 && exponent <= most_exponent))
    return config_error(fmt::format(
        "emulated.routing: expected even, zipf:S with S from 0 to {}, or trace:FILE, found {}", most_exponent, text));
  routing.follow_zipf(exponent);
  return routing;
}

void DrawnRouting::follow_zipf(double exponent) {
  for (int layer = 0; layer < model_.layers; ++layer) {
    std::vector<double> shares(static_cast<std::size_t>(model_.experts));
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = std::pow(double(i + 1), -exponent);
    const Philox random(model_.seed, stream_of(fmt::format("popular experts of layer {}", layer)));
    for (std::size_t i = shares.size(); i > 1; --i) std::swap(shares[i - 1], shares[random.below(i, i)]);
    sums_.push_back(added_up(std::move(shares)));
  }
}

Status DrawnRouting::read_trace(const std::string& file) {
  std::ifstream in(file);
  if (!in) return refused(file, "expected the records of a run (metrics.jsonl), found no file that can be read");
  int line = 0;
  for (std::string text; std::getline(in, text);) {
    ++line;
    LANCET_ASSIGN(const auto record,
                  parse_json(text, fmt::format("emulated.routing: {}:{}", file, line), ExitCode::config));
    const auto layers = record.find("layer_expert_tokens");
    if (layers == record.end() || !layers->is_array() || layers->empty()) continue;  // a held-out loss, or no counts
    const std::size_t experts = layers->front().is_array() ? layers->front().size() : 0;
    if (int(layers->size()) != model_.layers || std::int64_t(experts) != model_.experts)
      return refused(file, fmt::format("line {}: expected counts of {} MoE layers with {} experts, found {} with {}",
                                       line, model_.layers, model_.experts, layers->size(), experts));
    for (const auto& counts : *layers) {
      std::vector<double> shares;
      for (const auto& count : counts)
        if (count.is_number() && count.get<double>() >= 0) shares.push_back(count.get<double>());
      if (shares.size() != experts || std::accumulate(shares.begin(), shares.end(), 0.0) <= 0)
        return refused(file, fmt::format("line {}: expected {} counts of tokens a layer, found others", line, experts));
      sums_.push_back(added_up(std::move(shares)));
    }
  }
  if (sums_.empty())
    return refused(file,
                   "expected records with layer_expert_tokens, found none (log.interval=1 writes them each step)");
  return {};
}

const DrawnRouting::Sums& DrawnRouting::sums(int layer, std::int64_t pass) const {
  const std::size_t layers = static_cast<std::size_t>(model_.layers), steps = sums_.size() / layers;
  const auto step = static_cast<std::size_t>(pass / model_.micro_batches);
  return sums_[step % steps * layers + static_cast<std::size_t>(layer)];
}

// The expert of a further choice: one without a score. last: the choice before.
std::size_t DrawnRouting::next_choice(const Sums* shares, double u, std::span<const float> scores,
                                      std::size_t last) const {
  const std::size_t experts = scores.size();
  std::size_t next = (last + 1) % experts;
  while (scores[next] > 0) next = (next + 1) % experts;
  if (!shares) return next;
  const auto share = [&](std::size_t e) { return (*shares)[e] - (e > 0 ? (*shares)[e - 1] : 0); };
  double left = 0;
  for (std::size_t e = 0; e < experts; ++e) left += scores[e] > 0 ? 0 : share(e);
  for (std::size_t e = 0; e < experts; ++e) {
    if (scores[e] > 0 || share(e) <= 0) continue;
    next = e;
    if ((u -= share(e) / left) < 0) break;
  }
  return next;
}

void DrawnRouting::draw(int layer, std::int64_t pass, int place, std::int64_t first, std::span<float> scores) const {
  const auto experts = static_cast<std::size_t>(model_.experts), tokens = scores.size() / experts;
  std::fill(scores.begin(), scores.end(), 0.f);
  const Philox random(model_.seed, stream_of(fmt::format("routing {} {} {}", layer, pass, place)));
  std::vector<Philox> further;  // of each choice after the first
  for (std::int64_t k = 1; k < model_.choices; ++k)
    further.emplace_back(model_.seed, stream_of(fmt::format("routing {} {} {} {}", layer, pass, place, k)));
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto token = static_cast<std::uint64_t>(first) + t;
    const auto words = random.block(token);
    std::size_t expert = token % experts;
    if (!sums_.empty()) {
      const double u = (double(words[0]) + 0.5) * 0x1p-32;
      const Sums& shares = sums(layer, pass);
      expert = static_cast<std::size_t>(std::upper_bound(shares.begin(), shares.end(), u) - shares.begin());
      expert = std::min(expert, experts - 1);
    }
    const auto own = scores.subspan(t * experts, experts);
    own[expert] = least_score + float(words[1] >> 8) * 0x1p-24f;
    for (std::int64_t k = 1; k < model_.choices; ++k) {
      const auto word = further[std::size_t(k - 1)].block(token)[0];
      expert = next_choice(sums_.empty() ? nullptr : &sums(layer, pass), (double(word) + 0.5) * 0x1p-32, own, expert);
      own[expert] = least_score * float(model_.choices - k) / float(model_.choices);
    }
  }
}

DrawnRouting::Expected DrawnRouting::expected(double capacity) const {
  if (sums_.empty()) return {};
  const auto experts = static_cast<std::size_t>(model_.experts);
  const std::size_t local = experts / static_cast<std::size_t>(model_.ranks);
  // A token chooses an expert at most once. That its further choices are drawn from fewer experts is left out.
  const double at_most = std::min(capacity, double(experts) / double(model_.choices));
  Expected mean{0, 0};
  for (const Sums& shares : sums_) {
    double kept = 0, fullest = 0;
    for (std::size_t first = 0; first < experts; first += local) {
      double load = 0;  // of a rank, relative to an even one
      for (std::size_t e = first; e < first + local; ++e)
        load += std::min((shares[e] - (e > 0 ? shares[e - 1] : 0)) * double(experts), at_most) /
                (std::min(capacity, 1.0) * double(local));
      fullest = std::max(fullest, load);
      kept += load / double(model_.ranks);
    }
    mean.fullest += fullest / double(sums_.size());
    mean.kept += kept / double(sums_.size());
  }
  return mean;
}

}  // namespace lancet::runtime
