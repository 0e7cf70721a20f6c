#include "lancet/schedule/overlap.h"
#include "lancet/schedule/turns.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <optional>

#include "lancet/ir/dependencies.h"
#include "orders.h"
#include "pipelines.h"
#include "reorder.h"
#include "split_search.h"

namespace lancet::schedule {

Candidate program_order(const Step& step) {
  return as_it_is(step, "", step.program(), step.op_costs(), step.dependencies());
}

Candidate take_turns(const Step& step, const config::Overlap&, Candidate candidate) {
  Dependencies needed = turns(candidate.program, std::move(candidate.needed));
  return as_it_is(step, "compute and all-to-all take turns", std::move(candidate.program),
                  std::move(candidate.op_costs), std::move(needed));
}

Candidate move_dw(const Step& step, const config::Overlap&, Candidate candidate) {
  const cost::Costs& costs = step.costs();
  DwReport report;
  ir::Program program =
      dw_schedule(candidate.program, candidate.op_costs, costs.interference(), costs.launch_ms(), &report);
  std::vector<cost::OpCost> op_costs = cost::op_costs(costs, program).value();
  Dependencies needed = ir::dependencies(program);
  return as_it_is(
      step, fmt::format("weight gradients cover {:.3g} of {:.3g} ms of all-to-all", report.covered_ms, report.slack_ms),
      std::move(program), std::move(op_costs), std::move(needed));
}

Candidate move_dw_greedily(const Step& step, const config::Overlap&, Candidate candidate) {
  DwReport report;
  ir::Program program = greedy_dw_schedule(candidate.program, candidate.op_costs, report);
  std::vector<cost::OpCost> op_costs = cost::op_costs(step.costs(), program).value();
  Dependencies needed = ir::dependencies(program);
  const std::string separator = candidate.how.empty() ? "" : "; ";
  return as_it_is(step,
                  fmt::format("{}{}weight gradients cover {:.3g} of {:.3g} ms of all-to-all", candidate.how, separator,
                              report.covered_ms, report.slack_ms),
                  std::move(program), std::move(op_costs), std::move(needed));
}

Candidate chunk_all_reduces(const Step& step, const config::Overlap&, Candidate candidate) {
  ReduceReport report;
  Ordered ordered = reduce_schedule(candidate.program, candidate.op_costs, step.costs(), &report);
  std::vector<cost::OpCost> op_costs = cost::op_costs(step.costs(), ordered.program).value();
  Dependencies needed = ir::dependencies(ordered.program);
  join(needed, ordered.extra);
  if (report.chunk_bytes > 0) candidate.how += fmt::format("; all-reduces of {} KB", report.chunk_bytes >> 10);
  return as_it_is(step, std::move(candidate.how), std::move(ordered.program), std::move(op_costs), std::move(needed));
}

// In the order of the candidate the passes of the micro batches alternate: F0 B0 F1 B1 F2 B2, where a forward pass ends
// with its loss. Each pair B(k) F(k+1) is a span of consecutive instructions, so the list scheduler orders it alone,
// and what stands before the first pair and after the last stays in its order. An order without a limit of memory lets
// the forward pass run ahead, and the activations of two micro batches are alive at once. Under a limit the forward
// pass waits where the backward pass has not freed enough yet, so that the two keep step.
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

// The program with each pipeline in the order of its stages; all else stays in program order.
Candidate pipelines_with_copies(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (step.part_counts(cut_named("batch")).empty()) return candidate;
  const std::vector<Range> ranges = choose_pipelines(step, overlap);
  const Split split = split_in_pipelines(step, ranges);
  const Rewritten rewritten = rewrite(step.program(), split);
  std::vector<Span> spans;
  for (const Range& range : ranges)
    spans.push_back(position_of(rewritten, std::size_t(range.begin), std::size_t(range.end)));
  const Order order = staged(rewritten.program, ir::dependencies(rewritten.program), spans);
  ir::Program program = permuted(rewritten.program, order);
  Dependencies needed = ir::dependencies(program);
  return as_it_is(step, describe(step, ranges), std::move(program), permuted(step.op_costs(rewritten, split), order),
                  std::move(needed));
}

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
