// In the order of the candidate the passes of the micro batches alternate: F0 B0 F1 B1 F2 B2. Each pair B(k) F(k+1) is
// a span of consecutive instructions, so the list scheduler orders it alone, and what stands before the first pair and
// after the last stays in its order.
#include <fmt/format.h>

#include "lancet/ir/micro_batches.h"
#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// From the first instruction of each backward pass to that of the next one.
std::vector<Span> pairs_of(const ir::Program& program) {
  std::vector<std::size_t> backward;  // by micro batch
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (at.role != ir::Role::forward && at.micro_batch == std::int32_t(backward.size())) backward.push_back(i);
  }
  std::vector<Span> pairs;
  for (std::size_t micro = 1; micro < backward.size(); ++micro)
    pairs.emplace_back(backward[micro - 1], backward[micro]);
  return pairs;
}

}  // namespace

Candidate pair_micro_batches(const Step& step, const config::Overlap&, Candidate candidate) {
  const std::vector<Span> pairs = pairs_of(candidate.program);
  if (pairs.empty()) return candidate;
  const Orders orders(candidate.program, candidate.op_costs, pairs);
  std::optional<Candidate> best;
  for (const bool fill_gaps : {true, false}) {
    const Order order = orders.find({.fill_gaps = fill_gaps}).order;
    Candidate paired = as_it_is(step, fmt::format("{} pairs of micro batches; {}", pairs.size(), candidate.how),
                                orders.program(order), orders.op_costs(order), orders.needed(order));
    best = best ? better(*std::move(best), std::move(paired)) : std::move(paired);
  }
  return *std::move(best);
}

}  // namespace lancet::schedule
