// Plans a step within a memory: makes values again in the backward pass as far as the memory asks for it.
#pragma once
#include <functional>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/plan_request.h"
#include "recompute_choices.h"
#include "steps.h"

namespace lancet::planner {

// Makes the plan of a rank's step by the policy of the request.
using PlanMaker = std::function<Result<ir::Plan>(ir::Program step, const PlanRequest&, Pipeline, PlanReport*)>;

// A plan whose named tensors and arena take at most request.memory_limit bytes. step: after all passes that change what
// is computed; pipeline: those passes. Config error: no plan is that small; the message has the smallest limit.
Result<ir::Plan> plan_within_memory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline,
                                    const PlanMaker& make, PlanReport* report);

// The step of a pipeline stage, one micro batch, which makes again as little as the memory asks for. resident_bytes: of
// the named tensors of all micro batches. Returns these and the arena in this order, which are above
// request.memory_limit if no choice is small enough.
std::int64_t recompute_within_memory(ir::Program& step, std::int64_t resident_bytes, const PlanRequest& request,
                                     StepOrder order, Pipeline& pipeline);
// The error that says so.
Error memory_limit_too_small(std::int64_t least_bytes, const PlanRequest& request);

}  // namespace lancet::planner
