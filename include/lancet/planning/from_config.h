// How a config becomes plans.
#pragma once
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/planner/planner.h"

namespace lancet::planning {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks);

// comm.device_all_to_all, for a profile.
cost::AllToAllWays requested_all_to_alls(const config::Config& config);

struct StepOptions {
  bool update = true;                  // false: a micro batch before the one that updates the weights
  const cost::Costs* costs = nullptr;  // every policy but sequential needs them
  bool costs_may_lack_ops = false;     // sequential is then planned without predictions
  bool compare = false;                // the report holds all policies
  bool inspect = false;                // gradients and routes stay readable after a step (tests)
  std::vector<std::string> skip = {};  // passes to leave out
  bool keep_texts = false;             // the report holds the Program after each pass
};
// The plan of a training step.
Result<ir::Plan> plan_step(const config::Config& config, int ranks, const StepOptions& options,
                           planner::PlanReport* report = nullptr);
// The Programs whose instructions planning such a step asks the costs about.
std::vector<ir::Program> programs_to_profile(const config::Config& config, int ranks, bool update);
// costs: choose how all-to-alls travel; may be null.
ir::Plan plan_forward(const config::Config& config, model::Mode mode, int ranks, const cost::Costs* costs = nullptr);
// The next `rows` tokens of one sequence.
ir::Plan plan_decode(const config::Config& config, std::int64_t rows, int ranks);

// Rank 0's plan on all ranks, as text; each compares the hash of what it understood (rule 4). Of other ranks only the
// error counts. Collective.
Result<ir::Plan> share_plan(comm::Communicator& world, const Result<ir::Plan>& mine);

}  // namespace lancet::planning
