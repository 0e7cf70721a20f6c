#include "policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "order_search.h"
#include "partition/ranges.h"

namespace lancet::planner {
namespace {

// The one with the shorter step; `a` of equals.
Candidate better(Candidate a, Candidate b) {
  return b.timeline.makespan < a.timeline.makespan * (1 - 1e-9) ? std::move(b) : std::move(a);
}

// The best of what `search` makes of `whole`. Where a number of parts is asked for, any split takes its place: for
// the search it never ends then. Where even so none does, since none fits the memory, it is what it was.
template <class F>
Candidate searched(Candidate whole, const Step& step, const PartitionLimits& limits, Cut cut, F search) {
  const double makespan = whole.timeline.makespan;
  if (limits.parts > 1 && !step.part_counts(cut).empty())
    whole.timeline.makespan = std::numeric_limits<double>::infinity();
  Candidate best = search(std::move(whole));
  if (!std::isinf(best.timeline.makespan)) return best;
  best.timeline.makespan = makespan;
  best.how += fmt::format("; nothing in {} parts fits the memory", limits.parts);
  return best;
}

Candidate sequential(const Step& step, const PartitionLimits&) {
  return as_it_is(step, "compute and all-to-all take turns", step.program(), step.loads(),
                  taking_turns(step.program(), step.dependencies()));
}

// Where the instructions of [begin, end) of the source stand in the rewritten program.
std::pair<std::size_t, std::size_t> place_of(const Rewritten& rewritten, std::size_t begin, std::size_t end) {
  std::size_t first = rewritten.origin.size(), last = 0;
  for (std::size_t i = 0; i < rewritten.origin.size(); ++i) {
    if (rewritten.origin[i] < int(begin) || rewritten.origin[i] >= int(end)) continue;
    first = std::min(first, i);
    last = i + 1;
  }
  return {first, last};
}

// From the first instruction of each layer's experts that is split to the second of their two all-to-alls.
std::vector<std::pair<std::size_t, std::size_t>> expert_stretches(const Step& step) {
  std::vector<std::pair<std::size_t, std::size_t>> stretches;
  int exchanges = 2;
  for (std::size_t i = 0; i < step.program().instructions.size(); ++i) {
    if (!step.rows(Cut::capacity)[i]) continue;
    if (exchanges == 2) {
      stretches.emplace_back(i, i);
      exchanges = 0;
    }
    exchanges += ops::kind(step.program().instructions[i]) == ops::Kind::all_to_all;
    stretches.back().second = i + 1;
  }
  return stretches;
}

Candidate experts_in_parts(const Step& step, Cut cut, int parts) {
  const Split split = step.all(cut, parts);
  const Rewritten rewritten = rewrite(step.program(), split);
  ir::Program program = rewritten.program;
  std::vector<cost::Load> loads = step.loads(rewritten, split);
  for (const auto& [begin, end] : expert_stretches(step)) {
    const auto [first, last] = place_of(rewritten, begin, end);
    const Orders orders(program, loads, first, last);
    const Order order = orders.find({}).order;
    program = orders.program(order);
    loads = orders.loads(order);
  }
  Needed needed = taking_turns(program, ir::dependencies(program));
  return as_it_is(
      step,
      fmt::format("experts and their all-to-alls in {} {}", parts, cut == Cut::peers ? "groups of peers" : "parts"),
      std::move(program), std::move(loads), std::move(needed));
}

Candidate best_experts_in_parts(const Step& step, const PartitionLimits& limits, Cut cut) {
  Candidate whole = sequential(step, limits);
  whole.how = "experts and their all-to-alls whole";
  return searched(std::move(whole), step, limits, cut, [&](Candidate best) {
    for (int parts : step.part_counts(cut)) best = better(std::move(best), experts_in_parts(step, cut, parts));
    return best;
  });
}

Candidate expert_pipeline(const Step& step, const PartitionLimits& limits) {
  return best_experts_in_parts(step, limits, Cut::capacity);
}

Candidate peer_groups(const Step& step, const PartitionLimits& limits) {
  return best_experts_in_parts(step, limits, Cut::peers);
}

Candidate dw(const Step& step, const PartitionLimits&) {
  const cost::Costs& costs = step.costs();
  DwReport dws;
  const ir::Program moved = dw_schedule(step.program(), step.loads(), costs.interference(), costs.launch_ms(), &dws);
  ReduceReport reduces;
  Ordered ordered = reduce_schedule(moved, cost::loads(costs, moved).value(), costs, &reduces);
  std::vector<cost::Load> loads = cost::loads(costs, ordered.program).value();
  Needed needed = ir::dependencies(ordered.program);
  join(needed, ordered.extra);
  std::string how =
      fmt::format("weight gradients cover {:.3g} of {:.3g} ms of all-to-all", dws.covered_ms, dws.room_ms);
  if (reduces.chunk_bytes > 0) how += fmt::format("; all-reduces of {} KB", reduces.chunk_bytes >> 10);
  return as_it_is(step, std::move(how), std::move(ordered.program), std::move(loads), std::move(needed));
}

std::string describe(const Step& step, const std::vector<Range>& ranges) {
  if (ranges.empty()) return "forward whole";
  std::string text = "forward in";
  for (const Range& range : ranges)
    text += fmt::format(" {} parts from {} to {},", range.parts,
                        step.program().instructions[std::size_t(range.begin)].label,
                        step.program().instructions[std::size_t(range.end) - 1].label);
  text.pop_back();
  return text;
}

// The dynamic programme's ranges, and the whole forward pass as one range of each number of parts.
std::vector<std::vector<Range>> range_choices(const Step& step, const PartitionLimits& limits) {
  if (limits.reach >= 0) {
    std::vector<std::vector<Range>> choices;
    for (int parts : step.part_counts(Cut::batch)) choices.push_back(ranges_of_reach(step, limits, parts));
    return choices;
  }
  std::vector<std::vector<Range>> choices{choose_forward_ranges(step, limits)};
  for (int parts : step.part_counts(Cut::batch)) choices.push_back({{0, int(step.forward_end()), parts}});
  std::erase_if(choices, [](const std::vector<Range>& ranges) { return ranges.empty(); });
  return choices;
}

// The forward pass in parts; the backward pass as in `sequential`.
Candidate with_forward_in_parts(const Step& step, const PartitionLimits& limits, Candidate best) {
  for (const std::vector<Range>& ranges : range_choices(step, limits)) {
    const Split split = split_of(step, ranges, false);
    const Rewritten rewritten = rewrite(step.program(), split);
    const auto [first, last] = place_of(rewritten, 0, step.forward_end());
    const Orders orders(rewritten.program, step.loads(rewritten, split), first, last);
    for (double lead : {0.0, 1.0 / 128, 1.0 / 32}) {
      const Order order = orders.find({.fill_gaps = false, .lead = lead}).order;
      ir::Program program = orders.program(order);
      Needed needed = taking_turns(program, orders.needed(order));
      best = better(std::move(best),
                    as_it_is(step, describe(step, ranges), std::move(program), orders.loads(order), std::move(needed)));
    }
  }
  return best;
}

Candidate partition(const Step& step, const PartitionLimits& limits) {
  Candidate whole = sequential(step, limits);
  whole.how = "no range pays";
  return searched(std::move(whole), step, limits, Cut::batch,
                  [&](Candidate best) { return with_forward_in_parts(step, limits, std::move(best)); });
}

Candidate lancet(const Step& step, const PartitionLimits& limits) {
  Candidate first = better(sequential(step, limits), dw(step, limits));
  if (!step.has_exchange()) return first;
  OrderSearch search(step);
  if (limits.parts <= 1) search.try_split("weight gradients where the wire leaves time", step.whole(Cut::batch));
  for (const std::vector<Range>& ranges : range_choices(step, limits))
    for (bool backward : {true, false}) {
      if (backward && !limits.backward) continue;
      search.try_split(describe(step, ranges) + (backward ? ", backward alike" : ", backward whole"),
                       split_of(step, ranges, backward));
    }
  return searched(std::move(first), step, limits, Cut::batch,
                  [&](Candidate whole) { return search.best(std::move(whole)); });
}

const Policy table[] = {
    {"sequential", "no overlap of computation and all-to-all (as DeepSpeed and RAF do)", sequential},
    {"expert_pipeline", "the experts in 1, 2, 4 or 8 parts beside their all-to-alls (as Tutel does)", expert_pipeline},
    {"peer_groups", "the experts by 1, 2, 4 or 8 groups of peers beside their exchanges (as FasterMoE does)",
     peer_groups},
    {"dw", "weight gradients under the backward all-to-alls (Lancet, section 4)", dw},
    {"partition", "the forward pass around the MoE layers in parts (Lancet, section 5)", partition},
    {"lancet", "both, and the backward pass in parts where that pays", lancet},
};

}  // namespace

std::span<const Policy> policy_table() { return table; }

}  // namespace lancet::planner
