// Makes the plans of a run on rank 0 and shares them with all ranks.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::run {

struct RunPlanOptions {
  int local_ranks = 1;                          // ranks on this host
  const cost::Costs* costs = nullptr;           // replace the measured ones
  std::optional<cost::RankLoad> load = {};      // that the plans are made for; none: the one that the costs hold for
  std::string profile_folder = {};              // ProfileRequest::profile_folder
  std::string plan_file = {};                   // the plan that runs; empty: one is made as config.overlap says
  runtime::Accelerator* accelerator = nullptr;  // on which the rank trains; null: the CPU
  bool crowded = false;                         // StepOptions::crowded
  bool inspect = false;                         // StepOptions::inspect
  std::function<bool()> interrupted = {};       // ProfileRequest::interrupted
};

struct StepPlans {
  ir::Plan step;  // micro_batches_in_plan() micro batches of the step; of this rank's pipeline stage
  std::optional<ir::Plan> evaluate;
  // With several stages: the plans of all, which together name all groups of ranks; else empty.
  std::vector<ir::Plan> step_stages = {}, evaluate_stages = {};
  // By pipeline stage, whatever their number is.
  std::span<const ir::Plan> all_steps() const { return step_stages.empty() ? std::span(&step, 1) : step_stages; }
  planner::PlanReport report;  // on rank 0
  // The costs without RunPlanOptions::load; null: none were needed. Those that were measured are in `measured`.
  const cost::Costs* costs = nullptr;
  std::shared_ptr<const cost::Profile> measured;
};

// Reads the plan file if the options name one; else plans by the config's policy. If the policy needs measured costs,
// those that the profile lacks are measured first; else they only predict the step, and a warning says if
// config.overlap.profile holds none. Collective; errors are the same on all ranks.
Result<StepPlans> make_step_plans(const config::Config& config, comm::Communicator& world,
                                  const RunPlanOptions& options, bool evaluates);

// The predicted milliseconds of a step of `micro_batches` micro batches; none without costs.
std::optional<double> predicted_ms(const StepPlans& plans, std::int64_t micro_batches);
// The same under another load than the plans were made for. plans.costs is set.
Result<double> predicted_ms(const StepPlans& plans, std::int64_t micro_batches, const cost::RankLoad& load);

}  // namespace lancet::run
