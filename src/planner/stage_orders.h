// The orders of all stages' instructions under train.pipeline_schedule.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/planner/plan_request.h"
#include "lancet/schedule/pipeline_order.h"

namespace lancet::planner {

struct StageOrders {
  std::vector<schedule::PipelineOrder> stages;
  std::string how;  // the schedule; of a search, also what it found
};

// programs: of all stages, with all micro batches. Under all but 1f1b no arena is larger than the largest under 1F1B.
// searched, and interleaved, whose programs have several chunks, are predicted no slower than 1f1b and zero_bubble of
// the same programs, and are zero_bubble if the costs lack an op. Errors: an op that they may not lack.
Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request);

}  // namespace lancet::planner
