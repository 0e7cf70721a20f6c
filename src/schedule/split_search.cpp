#include "split_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "orders.h"

namespace lancet::schedule {
namespace {

// What packing tensors into the arena may lose of the memory that an order is given, as shares of the step's.
constexpr double packing_margins[] = {0.025, 0.065, 0.1};

std::int64_t held_bytes(const Step& step, const config::Overlap& overlap, double margin) {
  return std::int64_t((overlap.memory_factor - margin) * double(step.peak_bytes()));
}

// What is shorter than this is_shorter() than the candidate.
double longest_better(const Candidate& than) { return than.timeline.makespan * (1 - 1e-9); }

}  // namespace

Candidate better(Candidate a, Candidate b) { return is_shorter(b, a) ? std::move(b) : std::move(a); }

Candidate one_message_at_a_time(const Step& step, const Candidate& candidate) {
  return as_it_is(step, candidate.how + ", one message on the network at a time", candidate.program, candidate.op_costs,
                  one_message_at_a_time(candidate.program, candidate.needed));
}

Replaced replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, const std::string& key,
                           const std::function<Candidate()>& make) {
  std::optional<Candidate> candidate;
  const auto made = [&]() -> Candidate& { return candidate ? *candidate : candidate.emplace(make()); };
  const auto [found, is_new] = step.notes().candidates.try_emplace(key);
  auto& [ms, bytes] = found->second;
  if (is_new) ms = made().timeline.makespan;
  if (ms >= longest_better(best)) return Replaced::no;
  if (overlap.memory_factor != 0) {
    if (!bytes) bytes = arena_bytes(made().program, made().needed);
    if (double(*bytes) > overlap.memory_factor * double(step.arena_bytes())) return Replaced::too_large;
  }
  best = std::move(made());
  return Replaced::yes;
}

bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, ListOptions options,
                       const std::string& key, const std::function<Candidate(const ListOptions&)>& make) {
  for (std::size_t tries = 0;; ++tries) {
    const Replaced replaced =
        replace_if_better(best, step, overlap, fmt::format("{}; {}, {} bytes", key, options.lead, options.hold_bytes),
                          [&] { return make(options); });
    if (replaced != Replaced::too_large || tries == std::size(packing_margins)) return replaced == Replaced::yes;
    options.memory_bytes = options.hold_bytes = held_bytes(step, overlap, packing_margins[tries]);
  }
}

std::shared_ptr<SplitStep> split_step(const Step& step, Split split) {
  using Splits = std::map<std::pair<std::vector<int>, std::vector<const Cut*>>, std::shared_ptr<SplitStep>>;
  std::shared_ptr<void>& notes = step.notes().orders;
  if (!notes) notes = std::make_shared<Splits>();
  std::shared_ptr<SplitStep>& of = (*std::static_pointer_cast<Splits>(notes))[{split.parts, split.cuts}];
  if (!of) {
    Rewritten rewritten = rewrite(step.program(), split);
    std::vector<cost::OpCost> op_costs = step.op_costs(rewritten, split);
    of = std::make_shared<SplitStep>(step, std::move(split), std::move(rewritten.program), std::move(op_costs));
  }
  return of;
}

bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, ListOptions options,
                       SplitStep& of, const std::string& how) {
  const double most_ms = longest_better(best);
  const double most_bytes = overlap.memory_factor * double(step.arena_bytes());
  for (std::size_t tries = 0;; ++tries) {
    Made& made = of.find(options);
    if (of.ms(made) >= most_ms) return false;
    // No arena is smaller than what is alive at once.
    if (overlap.memory_factor == 0 ||
        (double(made.found.peak_bytes) <= most_bytes && double(of.arena_bytes(made)) <= most_bytes)) {
      best = of.candidate(step, how, made);
      return true;
    }
    if (tries == std::size(packing_margins)) return false;
    options.memory_bytes = options.hold_bytes = held_bytes(step, overlap, packing_margins[tries]);
  }
}

Candidate or_forced_split(Candidate whole, const Step& step, const config::Overlap& overlap, const Cut& cut,
                          const std::function<Candidate(Candidate)>& search) {
  const double makespan = whole.timeline.makespan;
  if (overlap.parts > 1 && most_parts(whole.program) == 1 && !step.part_counts(cut).empty())
    whole.timeline.makespan = std::numeric_limits<double>::infinity();
  Candidate best = search(std::move(whole));
  if (!std::isinf(best.timeline.makespan)) return best;
  best.timeline.makespan = makespan;
  best.how += fmt::format("; nothing in {} parts fits the memory", overlap.parts);
  return best;
}

std::pair<std::size_t, std::size_t> position_of(const Rewritten& rewritten, std::size_t begin, std::size_t end) {
  std::size_t first = rewritten.origin.size(), last = 0;
  for (std::size_t i = 0; i < rewritten.origin.size(); ++i) {
    if (rewritten.origin[i] < int(begin) || rewritten.origin[i] >= int(end)) continue;
    first = std::min(first, i);
    last = i + 1;
  }
  return {first, last};
}

std::vector<std::vector<Range>> range_choices(const Step& step, const config::Overlap& overlap) {
  if (overlap.reach >= 0) {
    std::vector<std::vector<Range>> choices;
    for (int parts : step.part_counts(step.token_cut())) choices.push_back(ranges_of_reach(step, overlap, parts));
    return choices;
  }
  std::vector<std::vector<Range>> choices{choose_forward_ranges(step, overlap)};
  for (int parts : step.part_counts(step.token_cut())) choices.push_back({{0, int(step.forward_end()), parts}});
  std::erase_if(choices, [](const std::vector<Range>& ranges) { return ranges.empty(); });
  return choices;
}

std::string describe(const Cut& cut, std::span<const int> counts) {
  const bool alike = std::ranges::count(counts, counts.front()) == std::ptrdiff_t(counts.size());
  if (alike && counts.front() == 1) return "whole";
  return fmt::format("in {} {}", fmt::join(alike ? counts.first(1) : counts, ", "), cut.words.parts);
}

std::string describe(const Step& step, const std::vector<Range>& ranges) {
  constexpr std::size_t most_described = 3;
  const auto label = [&](int i) { return std::string_view(step.program().instructions[std::size_t(i)].label); };
  if (ranges.empty()) return "forward whole";
  const auto [least, most] = std::ranges::minmax(ranges, {}, &Range::parts);
  if (ranges.size() > most_described)
    return fmt::format(
        "forward in {} ranges of {} parts from {} to {}", ranges.size(),
        least.parts == most.parts ? fmt::to_string(most.parts) : fmt::format("{} to {}", least.parts, most.parts),
        label(ranges.front().begin), label(ranges.back().end - 1));
  std::string text = "forward in";
  for (const Range& range : ranges)
    text += fmt::format(" {} parts {}from {} to {},", range.parts, range.by_capacity ? "by capacity " : "",
                        label(range.begin), label(range.end - 1));
  text.pop_back();
  return text;
}

}  // namespace lancet::schedule
