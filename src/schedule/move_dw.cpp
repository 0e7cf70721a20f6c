#include <fmt/format.h>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/dw_schedule.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/reduce_schedule.h"
#include "reorder.h"

namespace lancet::schedule {

Candidate move_dw(const Step& step, const config::Overlap&, Candidate candidate) {
  const cost::Costs& costs = step.costs();
  DwReport report;
  ir::Program program =
      dw_schedule(candidate.program, candidate.loads, costs.interference(), costs.launch_ms(), &report);
  std::vector<cost::Load> loads = cost::loads(costs, program).value();
  Needed needed = ir::dependencies(program);
  return as_it_is(
      step, fmt::format("weight gradients cover {:.3g} of {:.3g} ms of all-to-all", report.covered_ms, report.room_ms),
      std::move(program), std::move(loads), std::move(needed));
}

Candidate chunk_all_reduces(const Step& step, const config::Overlap&, Candidate candidate) {
  ReduceReport report;
  Ordered ordered = reduce_schedule(candidate.program, candidate.loads, step.costs(), &report);
  std::vector<cost::Load> loads = cost::loads(step.costs(), ordered.program).value();
  Needed needed = ir::dependencies(ordered.program);
  join(needed, ordered.extra);
  if (report.chunk_bytes > 0) candidate.how += fmt::format("; all-reduces of {} KB", report.chunk_bytes >> 10);
  return as_it_is(step, std::move(candidate.how), std::move(ordered.program), std::move(loads), std::move(needed));
}

}  // namespace lancet::schedule
