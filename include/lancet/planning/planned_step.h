// Plans without a run, made from a config and a file of measured or declared costs.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/hardware.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"

namespace lancet::planning {

struct PlanPlace {
  int ranks = 1;
  int hosts = 0;  // 0: one, or as many nodes of the hardware as the ranks fill
  // A file of costs whose device need not be this one. Empty: this device's, in config.overlap.profile, or else in
  // default_profile.
  std::string profile = {};
  std::string default_profile = {};
  // A declared machine (cost::read_hardware). What `profile` holds goes before it; without one nothing is measured.
  std::string hardware = {};
  std::vector<std::string> skip = {};  // passes to leave out
  bool keep_texts = false;             // the report holds the Program after each pass
};

struct PlannedStep {
  ir::Plan plan;
  planner::PlanReport report;
  cost::Profile profile;       // that it rests on; empty on a declared machine without one
  std::string costs;           // in words
  std::string exchanges;       // cost::AllToAllChoice in words; empty: the costs know of no windows
  std::int64_t memory = 0;     // bytes of a rank: parameters, states, inputs and the arena
  std::optional<double> room;  // GiB of a declared device, less what is reserved
};

// The plan that a run on so many ranks would make, and what every policy comes to. Config errors: the config does not
// fit the ranks; the file holds no such cluster, several, or lacks an op.
Result<PlannedStep> plan_offline(const config::Config& config, const PlanPlace& place);

// Bytes of a rank's named tensors, which stay from step to step, without the arena.
std::int64_t resident_tensor_bytes(const ir::Program& program);

}  // namespace lancet::planning
