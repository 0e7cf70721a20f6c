// A law or a trace becomes knots: the probabilities with which experts are chosen at some steps, between which they are
// linear. A trace has a knot a step. What ranks do is a mean over at most 64 steps, evenly spaced over all.
//
// Slots are given to tokens in order. So of a part of a batch, the choices of an expert that have a place in the first
// round are those below its slots, and a part runs as many rounds as its tokens and those of the parts before it fill.
#include "lancet/cost/loads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/random.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::cost {
namespace {

constexpr double most_exponent = 10;
constexpr double most_tokens = 1e15;            // of an expert in a record
constexpr std::int64_t most_steps = 1'000'000;  // of a law, from one order of experts to the next
constexpr int orders = 8;
constexpr std::int64_t most_sampled = 64;  // steps

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

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// The rows of a round of each rank, added to what the ranks and hosts do in the mean step. of_rank: relative to even
// routing. share: of the mean.
void add(RoundLoad& load, const std::vector<double>& of_rank, const std::vector<std::vector<int>>& hosts,
         double share) {
  const double all = std::accumulate(of_rank.begin(), of_rank.end(), 0.0) / double(of_rank.size());
  double fullest_host = 0;
  load.hosts.resize(hosts.size());
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (hosts[host].empty()) continue;
    double most = 0, sum = 0;
    for (const int rank : hosts[host])
      most = std::max(most, of_rank[std::size_t(rank)]), sum += of_rank[std::size_t(rank)];
    load.hosts[host] += share * most;
    fullest_host = std::max(fullest_host, sum / double(hosts[host].size()));
  }
  const double fullest = *std::max_element(of_rank.begin(), of_rank.end());
  load.fullest += share * fullest;
  load.fullest_host += share * (hosts.empty() ? fullest : fullest_host);
  load.kept += share * all;
  load.least += share * *std::min_element(of_rank.begin(), of_rank.end());
}

void scale(RoundLoad& load, double factor) {
  for (double* number : {&load.fullest, &load.fullest_host, &load.kept, &load.least}) *number *= factor;
  for (double& of_host : load.hosts) of_host *= factor;
}

void add(RoundLoad& sum, const RoundLoad& load, double share) {
  sum.fullest += share * load.fullest;
  sum.fullest_host += share * load.fullest_host;
  sum.kept += share * load.kept;
}

}  // namespace

Result<Loads> Loads::read(const std::string& what, const std::string& text, RoutedModel model) {
  Loads loads(std::move(model));
  constexpr std::string_view zipf = "zipf:", trace = "trace:";
  if (text == "even") return loads;
  if (text.starts_with(zipf)) {
    const std::string_view numbers = std::string_view(text).substr(zipf.size());
    const std::size_t colon = std::min(numbers.find(':'), numbers.size());
    double exponent = -1;
    std::int64_t steps = 0;
    const bool drifts = colon < numbers.size();
    if (parse(numbers.substr(0, colon), exponent) && exponent >= 0 && exponent <= most_exponent &&
        (!drifts || (parse(numbers.substr(colon + 1), steps) && steps >= 1 && steps <= most_steps))) {
      loads.follow_zipf(exponent, steps);
      return loads;
    }
  }
  const bool is_trace = text.starts_with(trace);
  const std::string file = is_trace ? text.substr(trace.size()) : text;
  if (!is_trace && (text.starts_with(zipf) || !std::ifstream(file)))
    return config_error(
        fmt::format("{}: expected even, zipf:S with S from 0 to {}, zipf:S:N with N steps from 1 to {}, or a file of "
                    "records (metrics.jsonl), found {}",
                    what, most_exponent, most_steps, text));
  LANCET_TRY(loads.read_trace(what, file));
  return loads;
}

Loads Loads::recorded(RoutedModel model, const std::vector<std::vector<std::vector<double>>>& steps) {
  Loads loads(std::move(model));
  for (const auto& layers : steps)
    for (const std::vector<double>& counts : layers) loads.knots_.push_back(chosen_with(counts, loads.model_.choices));
  return loads;
}

void Loads::follow_zipf(double exponent, std::int64_t steps) {
  steps_between_ = std::max<std::int64_t>(steps, 1);
  for (int order = 0; order < (steps > 0 ? orders : 1); ++order)
    for (std::size_t layer = 0; layer < model_.blocks.size(); ++layer) {
      std::vector<double> shares(static_cast<std::size_t>(model_.experts));
      for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = std::pow(double(i + 1), -exponent);
      const std::string later = order > 0 ? fmt::format(", order {}", order) : "";
      const Philox random(model_.seed, stream_of(fmt::format("popular experts of layer {}{}", layer, later)));
      for (std::size_t i = shares.size(); i > 1; --i) std::swap(shares[i - 1], shares[random.below(i, i)]);
      knots_.push_back(chosen_with(std::move(shares), model_.choices));
    }
}

Status Loads::read_trace(const std::string& what, const std::string& file) {
  const auto refused = [&](const std::string& text) {
    return config_error(fmt::format("{}: {}: {}", what, file, text));
  };
  const auto layers = std::int64_t(model_.blocks.size());
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error))
    return refused("expected the records of a run (metrics.jsonl), found no regular file");
  std::ifstream in(file);
  if (!in) return refused("expected the records of a run (metrics.jsonl), found no file that can be read");
  int line = 0;
  for (std::string text; std::getline(in, text);) {
    ++line;
    LANCET_ASSIGN(const auto record, parse_json(text, fmt::format("{}: {}:{}", what, file, line), ExitCode::config));
    const auto found = record.find("layer_expert_tokens");
    if (found == record.end() || !found->is_array() || found->empty()) continue;  // a held-out loss, or no counts
    const std::size_t experts = found->front().is_array() ? found->front().size() : 0;
    if (std::ssize(*found) != layers || std::int64_t(experts) != model_.experts)
      return refused(fmt::format("line {}: expected counts of {} MoE layers with {} experts, found {} with {}", line,
                                 layers, model_.experts, found->size(), experts));
    for (const auto& counts : *found) {
      std::vector<double> shares;
      for (const auto& count : counts)
        if (count.is_number() && count.get<double>() >= 0 && count.get<double>() <= most_tokens)
          shares.push_back(count.get<double>());
      if (shares.size() != experts || std::accumulate(shares.begin(), shares.end(), 0.0) <= 0)
        return refused(fmt::format("line {}: expected {} counts of tokens a layer, found others", line, experts));
      knots_.push_back(chosen_with(std::move(shares), model_.choices));
    }
  }
  if (knots_.empty())
    return refused("expected records with layer_expert_tokens, found none (log.interval=1 writes them each step)");
  return {};
}

std::int64_t Loads::period() const {
  return std::max<std::int64_t>(1, std::ssize(knots_) / std::ssize(model_.blocks) * steps_between_);
}

std::vector<double> Loads::chosen(int layer, std::int64_t step) const {
  if (is_even())
    return std::vector<double>(std::size_t(model_.experts), double(model_.choices) / double(model_.experts));
  const std::size_t layers = model_.blocks.size(), knots = knots_.size() / layers;
  const auto at = std::size_t(step % period() / steps_between_);
  std::vector<double> shares = knots_[at * layers + std::size_t(layer)];
  const double passed = double(step % steps_between_) / double(steps_between_);
  const std::vector<double>& next = knots_[(at + 1) % knots * layers + std::size_t(layer)];
  for (std::size_t e = 0; passed > 0 && e < shares.size(); ++e) shares[e] = std::lerp(shares[e], next[e], passed);
  return shares;
}

RankLoad Loads::find(int layer, double from, double to) const {
  RankLoad load{.first = {0, 0, {}, 0, 0}};
  const std::int64_t steps = period(), sampled = std::min(steps, most_sampled);
  const auto ranks = std::size_t(model_.ranks), each = std::size_t(model_.experts) / ranks;
  const double even = std::min(model_.slots, 1.0);
  for (std::int64_t sample = 0; sample < sampled; ++sample) {
    const std::vector<double> shares = chosen(layer, sample * steps / sampled);
    std::vector<double> first(ranks), further(ranks);
    double rounds = 0;
    for (std::size_t e = 0; e < shares.size(); ++e) {
      const double tokens = shares[e] * double(model_.experts) / double(model_.choices);  // relative to even routing
      const double kept = std::min(tokens * to, model_.slots) - std::min(tokens * from, model_.slots);
      first[e / each] += kept / (to - from) / even / double(each);
      if (!model_.in_rounds) continue;
      further[e / each] += (tokens - kept / (to - from)) / double(each);
      rounds = std::max(rounds, std::ceil(tokens * to / model_.slots * (1 - 1e-9)) - 1);
    }
    add(load.first, first, model_.hosts, 1 / double(sampled));
    add(load.further, further, model_.hosts, 1 / double(sampled));
    load.rounds += rounds / double(sampled);
  }
  if (load.rounds > 0) scale(load.further, 1 / load.rounds);
  return load;
}

const RankLoad& Loads::known(int layer, std::int64_t part, std::int64_t parts) const {
  const std::lock_guard lock(known_->mutex);
  const auto [at, is_new] = known_->loads.try_emplace({layer, part, parts});
  if (is_new) at->second = find(layer, double(part) / double(parts), double(part + 1) / double(parts));
  return at->second;
}

const RankLoad& Loads::of(const ir::Instruction& at) const {
  const auto block = ir::block_of(at.label);
  const auto found = block ? std::ranges::find(model_.blocks, *block) : model_.blocks.end();
  LANCET_CHECK(found != model_.blocks.end(), "{} at {} is in no MoE layer", at.op, at.label);
  const int layer = int(found - model_.blocks.begin());
  const bool is_further = ir::is_repeat(at) || at.repeated > 0;  // only a cut of the batch cuts these
  return is_further ? known(layer, at.attributes.integer("part", 0), at.attributes.integer("parts", 1))
                    : known(layer, 0, 1);
}

RankLoad Loads::mean() const {
  if (model_.blocks.empty()) return {};
  RankLoad mean{.first = {0, 0, {}, 0, 0}};
  const double share = 1 / double(model_.blocks.size());
  for (int layer = 0; layer < std::ssize(model_.blocks); ++layer) {
    const RankLoad& load = known(layer, 0, 1);
    add(mean.first, load.first, share);
    mean.rounds += share * load.rounds;
  }
  return mean;
}

std::string Loads::identity() const {
  std::string all = fmt::format("{} {} {}", model_.slots, model_.in_rounds, steps_between_);
  for (const std::vector<double>& knot : knots_) all += fmt::format(" {}", fmt::join(knot, " "));
  return hex(hash64(all));
}

}  // namespace lancet::cost
