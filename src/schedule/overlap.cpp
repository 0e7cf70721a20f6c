#include "lancet/schedule/overlap.h"

#include <fmt/format.h>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/dw_schedule.h"
#include "lancet/schedule/reduce_schedule.h"
#include "lancet/schedule/turns.h"
#include "reorder.h"

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

}  // namespace lancet::schedule
