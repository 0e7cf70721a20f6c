// Turns a config into plans: of training steps, of forward passes and of decoding.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/planner/planner.h"

namespace lancet::planner {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks);
// The logical Program that the config's model is on that many ranks.
ir::Program build_forward(const config::Config& config, const model::BuildOptions& options, int ranks);
// One rank's forward Program: its parameters have the shapes of this rank's shards.
Result<ir::Program> rank_forward(const config::Config& config, model::Mode mode, int ranks);

// What the planner is asked for a training step, without costs.
planner::PlanRequest plan_request(const config::Config& config, int ranks);

// A lower bound on the bytes of a rank's training step, known before the step is scheduled. All gradients are held
// until their norm is known.
struct LeastMemory {
  std::int64_t parameters = 0, state = 0, gradients = 0;
  std::int64_t total() const { return parameters + state + gradients; }
  std::string parts() const;  // in MB
};
// By pipeline stage.
Result<std::vector<LeastMemory>> least_memory(const config::Config& config, int ranks);

// The micro batches that the plan of a step holds: the largest number of at most 8 (64 with several pipeline stages,
// which drain between two runs) that divides the step's. A step of more runs the plan several times, all but the last
// time without what closes the step (ir::closes_step), so that a plan's size and the time to make it are bounded,
// whatever the number of micro batches.
int micro_batches_in_plan(const config::Config& config);
// Returns a warning if a step on several stages has enough micro batches but its plan holds fewer than half as many as
// a plan can; it names the nearest number of micro batches with which a plan holds at least half. Empty otherwise.
std::string short_runs_warning(const config::Config& config);

struct StepOptions {
  const cost::Costs* costs = nullptr;  // every policy but sequential needs them
  bool costs_may_lack_ops = false;     // if they do, sequential is planned without predictions
  bool crowded = false;                // more threads compute than there are cores, so predictions do not hold
  bool compare = false;                // planner::PlanRequest::compare
  bool inspect = false;                // gradients and gates' decisions stay readable after a step (tests)
  std::vector<std::string> skip = {};  // passes to leave out
  bool keep_texts = false;             // the report holds the Program after each pass
  bool bounds = false;                 // PlanRequest::bounds
};
Result<ir::Plan> plan_step(const config::Config& config, int ranks, const StepOptions& options,
                           planner::PlanReport* report = nullptr);
// The same by pipeline stage of the config's mesh; of one stage, the plan alone. Config errors: also those of
// passes::balanced_chunks.
Result<std::vector<ir::Plan>> plan_stages(const config::Config& config, int ranks, const StepOptions& options,
                                          planner::PlanReport* report = nullptr,
                                          planner::StageReport* stages = nullptr);
// Whole training steps of one rank, which together hold all instructions whose costs planning this config needs for
// ranks on this number of hosts. The first one has no parts.
Result<std::vector<ir::Program>> programs_to_profile(const config::Config& config, int ranks, int hosts);
Result<ir::Plan> plan_forward(const config::Config& config, const model::BuildOptions& options, int ranks);
// The same by pipeline stage.
Result<std::vector<ir::Plan>> plan_forward_stages(const config::Config& config, const model::BuildOptions& options,
                                                  int ranks);
// The plans, by pipeline stage, that read the next `rows` tokens of one sequence.
Result<std::vector<ir::Plan>> plan_decode(const config::Config& config, std::int64_t rows, int ranks);

// Collective: broadcasts rank 0's plan as text. Each rank parses and verifies it and compares the hash of the result
// with that of the text. Only rank 0's plan is used; an error in `mine` on any rank is returned on all.
Result<ir::Plan> share_plan(comm::Communicator& world, const Result<ir::Plan>& mine);
// The same for the plans of `count` pipeline stages. Every rank gets all of them.
Result<std::vector<ir::Plan>> share_plans(comm::Communicator& world, Result<std::vector<ir::Plan>> mine,
                                          std::size_t count);

// Reads a plan file that a user names, in the format that `lancet plan --out` and runs write.

// Returns a plan that is sound and is of this config's training step: it has the same model, optimizer, ranks, build,
// parameters, states, inputs, outputs and instructions. Config errors name the file and the difference, or the unsound
// instruction.
Result<ir::Plan> read_plan(const std::filesystem::path& path, const config::Config& config, int ranks);

// The same, collective: all ranks must bring the same file. An error of any rank is returned on all.
Result<ir::Plan> read_same_plan(const std::filesystem::path& path, const config::Config& config,
                                comm::Communicator& world);

}  // namespace lancet::planner
