// Plans a config's step without a run, from a file of measured or declared costs.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/hardware.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"

namespace lancet::run {

struct PlanTarget {
  int ranks = 1;
  int hosts = 0;  // 0: one host; on declared hardware the nodes that the ranks fill; emulated: a host a rank
  // A file of costs, which may be another device's. Empty: this device's costs (profile_path() in step_costs.h).
  std::string profile = {};
  std::string profile_folder = {};
  // A declared machine (cost::read_hardware). Costs in `profile` take precedence; without it all costs are declared.
  std::string hardware = {};
  // Of a declared machine: the tokens of the fullest expert over the mean, and whether whole buffers are sent and
  // multiplied (cost::Routing).
  double imbalance = 1;
  bool padded = false;
  std::string load = {};       // that the step is planned for (cost::Loads::read); empty: even, emulated.routing
  bool must_fit = true;        // an emulated or declared device must hold what every plan of the step holds
  std::string plan_file = {};  // a plan of this step (from_config.h) that is predicted; empty: a plan is made
  std::vector<std::string> skip = {};  // passes to leave out
  bool keep_texts = false;             // the report holds the Program after each pass
  bool compare = true;                 // the report has the predictions of every policy
};

// A hash (16 hexadecimal digits) of the sources that decide the numbers of a plan on a declared machine: programs, ops'
// descriptions, costs, model, planner, and the config's defaults.
std::string_view simulator_build();

struct PlannedStep {
  ir::Plan plan;
  planner::PlanReport report;
  // With several pipeline stages: the plans of all, of which `plan` is the first, and their times together.
  std::vector<ir::Plan> stages = {};
  planner::StageReport stage_times = {};
  cost::Profile profile;                   // the measured costs; empty on a declared machine without a profile
  std::string costs;                       // their origin in words
  cost::Routing routing = {};              // of a declared or an emulated machine; its loads of any
  std::int64_t memory = 0;                 // bytes of a rank: parameters, states, inputs and the arena
  std::optional<double> balanced_ms = {};  // that the plan would take if each expert were chosen as often
  double planning_ms = 0;                  // processor time of the thread that planned
  bool crowded = false;                    // StepOptions::crowded, on this machine
  std::optional<double> available_gib;     // GiB of memory of a declared device, less the reserved part
};

// The plan that a run on target.ranks ranks would make, and predictions; or the given plan and its prediction. Config
// errors: those of read_plan(); the config does not fit the ranks or the declared device's memory; the file holds no
// such cluster or several; it lacks an op.
Result<PlannedStep> plan_offline(const config::Config& config, PlanTarget target);

}  // namespace lancet::run
