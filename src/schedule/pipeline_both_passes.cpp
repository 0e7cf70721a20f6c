#include <fmt/format.h>

#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

Candidate both_passes_in_parts(const Step& step, const config::Overlap& overlap, Candidate best) {
  for (int parts : step.part_counts(cut_named("batch"))) {
    const Split split = split_of(step, {{0, int(step.forward_end()), parts}}, true);
    const Rewritten rewritten = rewrite(step.program(), split);
    const Orders orders(rewritten.program, step.op_costs(rewritten, split));
    for (double lead : part_leads) {
      const auto ordered = [&](const ListOptions& options) {
        const Order order = orders.find(options).order;
        return as_it_is(step, fmt::format("both passes in {} parts", parts), orders.program(order),
                        orders.op_costs(order), orders.needed(order));
      };
      replace_if_better(best, step, overlap, {.fill_gaps = false, .lead = lead, .backward_lead = lead}, ordered);
    }
  }
  return best;
}

}  // namespace

Candidate pipeline_both_passes(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "both passes whole";
  return or_forced_split(std::move(candidate), step, overlap, cut_named("batch"),
                         [&](Candidate best) { return both_passes_in_parts(step, overlap, std::move(best)); });
}

}  // namespace lancet::schedule
