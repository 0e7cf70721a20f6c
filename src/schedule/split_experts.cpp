// The policies that split only the experts. Every MoE layer, from its first expert instruction to its last
// all-to-all, is split and its parts are put in order; everything else takes turns. Forward and backward ranges of a
// layer have the same number of parts.
#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/turns.h"
#include "layer_cuts.h"
#include "orders.h"
#include "pipelines.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

enum class PartOrder { list_schedule, stages };

// The instructions of the spans in one of the orders, all else in program order; and its dependencies.
std::pair<Order, Dependencies> order_of(const Rewritten& rewritten, const std::vector<cost::OpCost>& op_costs,
                                        const std::vector<Span>& spans, PartOrder how, const ListOptions& options) {
  if (how == PartOrder::list_schedule) {
    const Orders orders(rewritten.program, op_costs, spans);
    Order order = orders.find(options).order;
    Dependencies needed = orders.needed(order);
    return {std::move(order), std::move(needed)};
  }
  const Dependencies dependencies = ir::dependencies(rewritten.program);
  Order order = staged(rewritten.program, dependencies, spans);
  Dependencies needed = renumbered(dependencies, order);
  return {std::move(order), std::move(needed)};
}

// degrees: the number of parts of each MoE layer.
Candidate experts_in_parts(const Step& step, const Cut& cut, const std::vector<int>& degrees, PartOrder how,
                           const ListOptions& options) {
  const std::vector<ExpertRange> ranges = expert_ranges(step);
  Split split = step.whole(cut);
  for (const ExpertRange& range : ranges)
    for (std::size_t i = range.span.first; i < range.span.second; ++i)
      if (split.rows[i]) split.parts[i] = degrees[range.layer];
  Rewritten rewritten = rewrite(step.program(), split);
  const std::vector<Span> spans = positions_of(rewritten, ranges);
  const std::vector<cost::OpCost> op_costs = step.op_costs(rewritten, split);
  auto [order, needed] = order_of(rewritten, op_costs, spans, how, options);
  ir::Program program = permuted(std::move(rewritten.program), order);
  needed = turns(program, std::move(needed));
  return as_it_is(step, "experts and their all-to-alls " + describe(cut, degrees), std::move(program),
                  permuted(op_costs, order), std::move(needed));
}

// Where the order by stages does not fit the memory, the list schedule takes its place.
bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, const Cut& cut,
                       const std::vector<int>& degrees, PartOrder how) {
  const auto made = [&](const ListOptions& options) { return experts_in_parts(step, cut, degrees, how, options); };
  if (how == PartOrder::stages) {
    const Candidate staged = made({});
    if (!is_shorter(staged, best)) return false;
    if (schedule::replace_if_better(best, staged, step, overlap)) return true;
    how = PartOrder::list_schedule;
  }
  return schedule::replace_if_better(best, step, overlap, {}, made);
}

std::vector<int> all_alike(const Step& step, int parts) {
  return std::vector<int>(layers_of(expert_ranges(step)), parts);
}

Candidate split_experts(const Step& step, const config::Overlap& overlap, const Cut& cut, PartOrder how,
                        Candidate candidate) {
  candidate.how = "experts and their all-to-alls whole";
  if (expert_ranges(step).empty()) return candidate;  // no tokens travel
  return or_forced_split(std::move(candidate), step, overlap, cut, [&](Candidate best) {
    for (int parts : step.part_counts(cut)) replace_if_better(best, step, overlap, cut, all_alike(step, parts), how);
    return best;
  });
}

// The best degree for all layers alike, then for each kind of layers the degree that makes the step shortest.
Candidate search_degrees(const Step& step, const config::Overlap& overlap, PartOrder how, Candidate best) {
  const std::vector<int>& counts = step.part_counts(cut_named("capacity"));
  const LayerKinds kinds(step, expert_ranges(step));
  std::vector<int> degrees(kinds.count(), 1), of_a_kind = counts;
  of_a_kind.insert(of_a_kind.begin(), 1);
  search_choices(degrees, counts, of_a_kind, [&](const std::vector<int>& tried) {
    return replace_if_better(best, step, overlap, cut_named("capacity"), kinds.by_layer(tried), how);
  });
  return best;
}

}  // namespace

Candidate smart_schedule(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, cut_named("peers"), PartOrder::stages, std::move(candidate));
}

Candidate degree_per_layer(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (overlap.parts > 0)
    return split_experts(step, overlap, cut_named("capacity"), PartOrder::list_schedule, std::move(candidate));
  candidate.how = "experts and their all-to-alls whole";
  for (PartOrder how : {PartOrder::stages, PartOrder::list_schedule})
    candidate = search_degrees(step, overlap, how, std::move(candidate));
  return candidate;
}

}  // namespace lancet::schedule
