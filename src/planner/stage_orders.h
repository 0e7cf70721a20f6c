// The orders of all stages' instructions under train.pipeline_schedule.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/planner/plan_request.h"
#include "lancet/schedule/stage_graph.h"

namespace lancet::planner {

struct StageOrders {
  std::vector<schedule::PipelineOrder> stages;
  std::string how;  // the schedule; of a search, also what it found
};

// programs: of all stages, with all micro batches. Under all but 1f1b no arena is larger than the largest under 1F1B,
// nor than request.memory_limit and the stage's device leave, if such an order is found. 1F1B of programs with several
// chunks is interleaved. With all costs known, of the orders that keep to this none is predicted shorter than the one
// that is taken: zero bubble takes the shorter of itself, with weight gradients beside all-to-alls or not, and 1F1B;
// searched and interleaved also try a list schedule. If the costs lack an op, which they may, weight gradients run
// beside all-to-alls, searched is zero bubble and interleaved 1F1B. Errors: an op that they may not lack.
Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request);

// The order of one stage's program.
schedule::PipelineOrder one_forward_one_backward(const ir::Program& program, int stage, int stages);
std::int64_t arena_bytes(const schedule::PipelineOrder& order);

}  // namespace lancet::planner
