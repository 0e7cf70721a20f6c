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
  std::string how;  // the schedule; of `searched`, also what it found
};

// programs: of all stages, with all micro batches. Under zero_bubble and searched no arena is larger than the largest
// under 1F1B. searched is predicted no slower than either, and is zero_bubble if the costs lack an op. Errors: an op
// that they may not lack.
Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request);

}  // namespace lancet::planner
