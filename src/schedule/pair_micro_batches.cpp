// In the order of the candidate the passes of the micro batches alternate: F0 B0 F1 B1 F2 B2, where a forward pass ends
// with its loss. Each pair B(k) F(k+1) is a span of consecutive instructions, so the list scheduler orders it alone,
// and what stands before the first pair and after the last stays in its order. An order without a limit of memory lets
// the forward pass run ahead, and the activations of two micro batches are alive at once. Under a limit the forward
// pass waits where the backward pass has not freed enough yet, so that the two keep step.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
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

// Bytes alive at once that the orders of the pairs are tried with: any, and shares of what a plan may take, less for
// what packing loses.
std::vector<std::int64_t> memory_limits(const Step& step, const config::Overlap& overlap) {
  std::vector<std::int64_t> limits{std::numeric_limits<std::int64_t>::max()};
  for (const double margin : {0.0, 0.025, 0.05, 0.1, 0.15})
    limits.push_back(std::int64_t((overlap.memory_factor - margin) * double(step.peak_bytes())));
  return limits;
}

}  // namespace

Candidate pair_micro_batches(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  const std::vector<Span> pairs = pairs_of(candidate.program);
  if (pairs.empty()) return candidate;
  const Orders orders(candidate.program, candidate.op_costs, pairs);
  const std::string how =
      fmt::format("{} pair{} of micro batches; {}", pairs.size(), pairs.size() == 1 ? "" : "s", candidate.how);
  std::optional<Candidate> best;
  for (const std::int64_t memory : memory_limits(step, overlap))
    for (const bool fill_gaps : {true, false}) {
      const Order order = orders.find({.fill_gaps = fill_gaps, .memory_bytes = memory, .hold_bytes = memory}).order;
      Candidate paired = as_it_is(step, how, orders.program(order), orders.op_costs(order), orders.needed(order));
      if ((!best || is_shorter(paired, *best)) && fits_memory(step, overlap, paired)) best = std::move(paired);
    }
  if (best) return *std::move(best);
  candidate.how += "; no pairs of micro batches fit overlap.memory_factor";
  return candidate;
}

Candidate pair_micro_batches_if_shorter(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  Candidate paired = pair_micro_batches(step, overlap, candidate);
  return better(std::move(candidate), std::move(paired));
}

}  // namespace lancet::schedule
