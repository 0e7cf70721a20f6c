// Composes the lines that a run logs before its first step.
#pragma once
#include <string>

#include "lancet/comm/network_check.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "rank_resources.h"
#include "step_tally.h"
#include "trainer_memory.h"

namespace lancet::train {

std::string banner(const config::Config& config, int ranks, const RankResources& resources,
                   const comm::NetworkReport& network, const MemoryPlan& memory, const Peak& peak);

// The text of memory.json: an object of the parts that the banner lists, in bytes.
std::string memory_json(const MemoryPlan& memory);

// Describes the plan that runs: policy, prediction, schedule, and why it differs from the requested one. Without
// policies in the report, the schedule is left out. runs: of the plan in a step; times are of one run.
std::string describe_plan(const ir::Plan& plan, const planner::PlanReport& report, int runs);

}  // namespace lancet::train
