// How a config becomes plans.
#pragma once
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/planner/planner.h"

namespace lancet::train {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks);

// comm.device_exchange, for a profile.
cost::Exchanges asked_exchanges(const config::Config& config);

// The plan of the step that updates the weights, or of a micro batch before it (update false). inspect: see trainer.h.
// costs: null only for the policy sequential. compare: the report shall hold all policies.
Result<ir::Plan> plan_step(const config::Config& config, int ranks, bool update, bool inspect,
                           const cost::Costs* costs = nullptr, planner::PlanReport* report = nullptr,
                           bool compare = false);
// The Programs whose instructions planning such a step asks the costs about.
std::vector<ir::Program> programs_to_profile(const config::Config& config, int ranks, bool update);
Result<ir::Plan> plan_forward(const config::Config& config, model::Mode mode, int ranks);
// The next `rows` tokens of one sequence.
Result<ir::Plan> plan_decode(const config::Config& config, std::int64_t rows, int ranks);

// Rank 0's plan on all ranks, as text; each compares the hash of what it understood (rule 4). Of other ranks only the
// error counts. Collective.
Result<ir::Plan> share_plan(comm::Communicator& world, const Result<ir::Plan>& mine);

}  // namespace lancet::train
