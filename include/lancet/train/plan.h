// Plans without a run: made from a config and a file of measured costs, or read from a file.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/hardware.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"

namespace lancet::train {

struct PlanPlace {
  int ranks = 1;
  int hosts = 0;  // 0: one, or as many nodes of the hardware as the ranks fill
  // A file of costs whose device need not be this one. Empty: this device's, in config.overlap.profile, or else in
  // default_profile.
  std::string profile = {};
  std::string default_profile = {};
  // A declared machine (cost::read_hardware). What `profile` holds goes before it; without one nothing is measured.
  std::string hardware = {};
};

struct PlannedStep {
  ir::Plan plan;
  planner::PlanReport report;
  cost::Profile profile;       // that it rests on; empty on a declared machine without one
  std::string costs;           // in words
  std::string exchanges;       // cost::ExchangeChoice in words; empty: the costs know of no windows
  std::int64_t memory = 0;     // bytes of a rank: parameters, states, inputs and the arena
  std::optional<double> room;  // GiB of a declared device, less what is reserved
};

// The plan that a run on so many ranks would make, and what every policy comes to. Config errors: the config does not
// fit the ranks; the file holds no such cluster, several, or lacks an op.
Result<PlannedStep> plan_offline(const config::Config& config, const PlanPlace& place);

// The same with costs that are at hand. compare: the report shall hold all policies.
Result<ir::Plan> plan_with(const config::Config& config, int ranks, const cost::Costs& costs,
                           planner::PlanReport* report = nullptr, bool compare = false);

// Bytes of a rank's named tensors, which stay from step to step, without the arena.
std::int64_t resident_tensor_bytes(const ir::Program& program);

// A plan file as `lancet plan --out` and runs write it, sound and of this config's training step: model, optimizer,
// ranks, build, and the parameters, states, inputs and outputs that the step has. Config errors name the file and what
// differs, or the instruction that is unsound.
Result<ir::Plan> read_plan(const std::filesystem::path& path, const config::Config& config, int ranks);

// The same, collective: all ranks must bring the same file. An error of any rank is returned on all.
Result<ir::Plan> read_same_plan(const std::filesystem::path& path, const config::Config& config,
                                comm::Communicator& world);

}  // namespace lancet::train
