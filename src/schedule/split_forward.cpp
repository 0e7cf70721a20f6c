#include "lancet/schedule/overlap.h"
#include "lancet/schedule/turns.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// The best of the given candidate and those with the forward pass in parts; the backward pass is as in `sequential`.
Candidate with_forward_in_parts(const Step& step, const config::Overlap& overlap, Candidate best) {
  for (const std::vector<Range>& ranges : range_choices(step, overlap)) {
    const Split split = split_of(step, ranges, false);
    const Rewritten rewritten = rewrite(step.program(), split);
    const Orders orders(rewritten.program, step.op_costs(rewritten, split),
                        {position_of(rewritten, 0, step.forward_end())});
    for (double lead : part_leads) {
      const auto ordered = [&](const ListOptions& options) {
        const Order order = orders.find(options).order;
        ir::Program program = orders.program(order);
        Dependencies needed = turns(program, orders.needed(order));
        return as_it_is(step, describe(step, ranges), std::move(program), orders.op_costs(order), std::move(needed));
      };
      replace_if_better(best, step, overlap, {.fill_gaps = false, .lead = lead}, ordered);
    }
  }
  return best;
}

}  // namespace

Candidate split_forward(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "no range pays";
  return or_forced_split(std::move(candidate), step, overlap, cut_named("batch"),
                         [&](Candidate best) { return with_forward_in_parts(step, overlap, std::move(best)); });
}

}  // namespace lancet::schedule
