#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// How far parts run ahead of each other, relative to the step; which is best depends on the model, so each is tried.
constexpr double is_rank0[] = {0, 1.0 / 128, 1.0 / 32};

// The forward pass in parts; the backward pass as in `sequential`.
Candidate with_forward_in_parts(const Step& step, const config::Overlap& overlap, Candidate best) {
  for (const std::vector<Range>& ranges : range_choices(step, overlap)) {
    const Split split = split_of(step, ranges, false);
    const Rewritten rewritten = rewrite(step.program(), split);
    const auto [first, last] = position_of(rewritten, 0, step.forward_end());
    const Orders orders(rewritten.program, step.op_costs(rewritten, split), first, last);
    for (double lead : is_rank0) {
      const Order order = orders.find({.fill_gaps = false, .lead = lead}).order;
      ir::Program program = orders.program(order);
      Dependencies needed = turns(program, orders.needed(order));
      best = better(std::move(best),
                    as_it_is(step, describe(step, ranges), std::move(program), orders.op_costs(order), std::move(needed)));
    }
  }
  return best;
}

}  // namespace

Candidate split_forward(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "no range pays";
  return or_forced_split(std::move(candidate), step, overlap, Cut::batch,
                         [&](Candidate best) { return with_forward_in_parts(step, overlap, std::move(best)); });
}

}  // namespace lancet::schedule
