// Makes the plans of a run on rank 0 and shares them with all ranks.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/step_costs.h"

namespace lancet::run {

struct RunPlanOptions {
  ProfileRequest profile = {};                    // of the costs that planning needs
  const cost::Costs* costs = nullptr;             // replace the measured ones
  std::shared_ptr<const cost::Loads> loads = {};  // that the plans are made for; null: those that the costs hold for
  std::string plan_file = {};                     // the plan that runs; empty: one is made as config.overlap says
  bool crowded = false;                           // StepOptions::crowded
  std::int64_t device_bytes = 0;                  // StepOptions::device_bytes
};

struct StepPlans {
  // By pipeline stage: of micro_batches_in_plan() micro batches of the step, and of an evaluation, if the run has one.
  // The plans of all stages together name all groups of ranks.
  std::vector<ir::Plan> steps, evaluations;
  ir::Mesh mesh;
  std::size_t stage = 0;  // this rank's
  const ir::Plan& step() const { return steps[stage]; }
  planner::PlanReport report;  // on rank 0
  // The costs without RunPlanOptions::loads; null: none were needed. Those that were measured are in `measured`.
  const cost::Costs* costs = nullptr;
  std::shared_ptr<const cost::Profile> measured;
};

// Reads the plan file if the options name one; else plans by the config's policy. If the policy needs measured costs,
// those that the profile lacks are measured first; else they only predict the step, and a warning says if
// config.overlap.profile holds none. Collective; errors are the same on all ranks.
Result<StepPlans> make_step_plans(const planner::StepModel& model, comm::Communicator& world,
                                  const RunPlanOptions& options, bool evaluates);

// The predicted milliseconds of a step of `micro_batches` micro batches by the plans of all stages; none without costs.
std::optional<double> predicted_ms(std::span<const ir::Plan> stages, std::int64_t micro_batches);
// The same under other loads than the plans were made for. plans.costs is set.
Result<double> predicted_ms(const StepPlans& plans, std::int64_t micro_batches,
                            std::shared_ptr<const cost::Loads> loads);

}  // namespace lancet::run
