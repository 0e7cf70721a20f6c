// A token draws a uniform number u by its place in the rank's micro batch, so a part of a micro batch draws what the
// whole draws. The experts divide [0, K) among them by the probabilities with which they are among a token's K choices,
// none of which is more than 1, and the token chooses the experts in whose ranges u, u + 1, ... and u + K - 1 are
// (systematic sampling): no expert twice, and each as often as its probability says. Experts that are not chosen have
// the score 0. The score of the first choice differs from token to token, because batch-prioritized gates order tokens
// by score.
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

// The probabilities with which experts are among the choices of a token, from their shares of all choices. Where a
// share would be more than one choice of every token, the other experts divide the rest by their shares.
std::vector<double> chosen_with(std::vector<double> shares, std::int64_t choices) {
  for (std::vector<bool> always(shares.size()); true;) {
    double left = double(choices), total = 0;
    for (std::size_t e = 0; e < shares.size(); ++e) always[e] ? left -= 1 : total += shares[e];
    for (std::size_t e = 0; total == 0 && e < shares.size(); ++e)  // fewer experts with a share than choices
      if (!always[e]) shares[e] = 1;
    if (total == 0) total = double(std::count(always.begin(), always.end(), false));
    bool more = false;
    for (std::size_t e = 0; e < shares.size(); ++e) {
      if (!always[e]) shares[e] *= left / total;
      if (always[e] || shares[e] <= 1) continue;
      shares[e] = 1;
      always[e] = more = true;
    }
    if (!more) return shares;
  }
}

// The ends of the experts' ranges in [0, K).
std::vector<double> added_up(const std::vector<double>& shares, std::int64_t choices) {
  std::vector<double> sums = chosen_with(shares, choices);
  std::partial_sum(sums.begin(), sums.end(), sums.begin());
  sums.back() = double(choices);
  return sums;
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
    sums_.push_back(added_up(shares, model_.choices));
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
      sums_.push_back(added_up(shares, model_.choices));
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

void DrawnRouting::draw(int layer, std::int64_t pass, int place, std::int64_t first, std::span<float> scores) const {
  const auto experts = static_cast<std::size_t>(model_.experts), tokens = scores.size() / experts;
  const auto choices = static_cast<std::size_t>(model_.choices);
  std::fill(scores.begin(), scores.end(), 0.f);
  const Philox random(model_.seed, stream_of(fmt::format("routing {} {} {}", layer, pass, place)));
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto token = static_cast<std::uint64_t>(first) + t;
    const auto words = random.block(token);
    const auto own = scores.subspan(t * experts, experts);
    for (std::size_t k = 0; k < choices; ++k) {
      std::size_t expert = (token + k) % experts;
      if (!sums_.empty()) {
        const double u = (double(words[0]) + 0.5) * 0x1p-32 + double((words[2] + k) % choices);
        const Sums& sums = this->sums(layer, pass);
        expert = static_cast<std::size_t>(std::upper_bound(sums.begin(), sums.end(), u) - sums.begin());
      }
      own[expert] =
          k == 0 ? least_score + float(words[1] >> 8) * 0x1p-24f : least_score * float(choices - k) / float(choices);
    }
  }
}

DrawnRouting::Expected DrawnRouting::expected(double capacity, std::span<const int> of) const {
  const auto experts = double(model_.experts), ranks = double(model_.ranks);
  const std::size_t draws = std::max<std::size_t>(sums_.size(), 1);
  const auto is_asked = [&](std::size_t rank) { return of.empty() || std::ranges::count(of, int(rank)) > 0; };
  const auto kept_by = [&](std::size_t draw, std::size_t e) {  // relative to even routing
    if (sums_.empty()) return 1.0;
    const double chosen = sums_[draw][e] - (e > 0 ? sums_[draw][e - 1] : 0);
    return std::min(chosen * experts / double(model_.choices), capacity) / std::min(capacity, 1.0);
  };
  if (model_.experts == 0) return {};
  Expected mean{0, 0};
  for (std::size_t draw = 0; draw < draws; ++draw) {
    double all = 0, fullest = 0;
    for (std::size_t rank = 0, e = 0; rank < std::size_t(model_.ranks); ++rank) {
      double load = 0;
      for (const std::size_t end = e + std::size_t(model_.experts / model_.ranks); e < end; ++e)
        load += kept_by(draw, e);
      if (is_asked(rank)) fullest = std::max(fullest, load * ranks / experts);
      all += load;
    }
    mean.fullest += fullest / double(draws);
    mean.kept += all / experts / double(draws);
  }
  return mean;
}

}  // namespace lancet::runtime
