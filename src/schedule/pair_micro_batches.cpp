// In the order of the candidate the passes of the micro batches alternate: F0 B0 F1 B1 F2 B2, where a forward pass ends
// with its loss. Each pair B(k) F(k+1) is a span of consecutive instructions, so the list scheduler orders it alone,
// and what stands before the first pair and after the last stays in its order.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// From the first instruction after the loss of a micro batch to the loss of the next one, for each two.
std::vector<Span> pairs_of(const ir::Program& program) {
  std::vector<ir::TensorId> losses;  // by micro batch, the memory
  for (const ir::Output& output : program.outputs)
    if (output.kind == ir::OutputKind::loss) losses.push_back(program.root(output.tensor));
  std::vector<std::size_t> backward;  // by micro batch, where it begins
  for (std::size_t i = 0; i < program.instructions.size() && backward.size() < losses.size(); ++i)
    if (std::ranges::any_of(program.instructions[i].results,
                            [&](ir::TensorId id) { return program.root(id) == losses[backward.size()]; }))
      backward.push_back(i + 1);
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
    Candidate paired = as_it_is(
        step, fmt::format("{} pair{} of micro batches; {}", pairs.size(), pairs.size() == 1 ? "" : "s", candidate.how),
        orders.program(order), orders.op_costs(order), orders.needed(order));
    best = best ? better(*std::move(best), std::move(paired)) : std::move(paired);
  }
  return *std::move(best);
}

}  // namespace lancet::schedule
