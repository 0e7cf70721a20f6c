// Plans a step within a memory: makes values again in the backward pass as far as the memory asks for it.
#pragma once
#include <functional>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/plan_request.h"
#include "pipeline.h"

namespace lancet::planner {

// Makes the plan of a rank's step by the policy of the request.
using PlanMaker = std::function<Result<ir::Plan>(ir::Program step, const PlanRequest&, Pipeline, PlanReport*)>;

// A plan whose named tensors and arena take at most request.memory_limit bytes. step: after all passes that change what
// is computed; pipeline: those passes. Config error: no plan is that small; the message has the smallest limit.
Result<ir::Plan> plan_within_memory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline,
                                    const PlanMaker& make, PlanReport* report);

}  // namespace lancet::planner
