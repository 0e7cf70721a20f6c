// Makes the plans of a run on rank 0 and shares them with all ranks.
#pragma once
#include <optional>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::planning {

struct RunPlanOptions {
  int local_ranks = 1;                          // ranks on this host
  const cost::Costs* costs = nullptr;           // replace the measured ones
  std::string profile_folder = {};              // ProfileRequest::profile_folder
  std::string plan_file = {};                   // the plan that runs; empty: one is made as config.overlap says
  runtime::Accelerator* accelerator = nullptr;  // on which the rank trains; null: the CPU
  bool crowded = false;                         // StepOptions::crowded
  bool inspect = false;                         // StepOptions::inspect
};

struct StepPlans {
  ir::Plan update;                // the step, or its last micro batch
  std::optional<ir::Plan> micro;  // the micro batches before it
  std::optional<ir::Plan> evaluate;
  planner::PlanReport report;  // on rank 0
};

// Reads the plan file if the options name one; else plans by the config's policy. If the policy needs measured costs,
// those that the profile lacks are measured first; else they only predict the step, and a warning says if
// config.overlap.profile holds none. Collective; errors are the same on all ranks.
Result<StepPlans> make_step_plans(const config::Config& config, comm::Communicator& world,
                                  const RunPlanOptions& options, bool evaluates);

}  // namespace lancet::planning
