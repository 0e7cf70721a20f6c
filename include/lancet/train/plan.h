// Planning a training step without ranks or a device: from a config and a file of measured costs.
#pragma once
#include <string>

#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"

namespace lancet::train {

struct PlanPlace {
  int ranks = 1, hosts = 1;
  std::string default_profile;  // where config.overlap.profile is empty
};

struct PlannedStep {
  ir::Plan plan;
  planner::PlanReport report;
};

// The plan that a run on so many ranks would make, and what every policy comes to. Config errors: the config does not
// fit the ranks; the profile holds no such cluster, or lacks an op.
Result<PlannedStep> plan_offline(const config::Config& config, const PlanPlace& place);

}  // namespace lancet::train
