// Turns a config into plans: of training steps, of forward passes and of decoding.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/model/transformer.h"
#include "lancet/planner/planner.h"

namespace lancet::planner {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks);
// One rank's forward Program: its parameters have the shapes of this rank's shards.
Result<ir::Program> rank_forward(const config::Config& config, model::Mode mode, int ranks);

// The model that a config trains on a number of ranks, built once for all plans of a run.
struct StepModel {
  // The config fits the ranks. inspect: gradients and gates' decisions stay readable after a step (tests).
  StepModel(const config::Config& config, int ranks, bool inspect = false);
  // What the planner is asked for a training step, without costs. Errors: those of first_blocks.
  Result<PlanRequest> request() const;

  config::Config config;
  int ranks;
  bool inspect;
  ir::Program forward;  // the logical Program
  // Where pipeline stages cut the model: the same for all of its plans, since a stage has its parameters for all of
  // them. Config errors: those of passes::balanced_chunks.
  Result<std::vector<int>> first_blocks;
};

// A lower bound on the bytes of a rank's training step, known before the step is scheduled. All gradients are held
// until their norm is known.
struct LeastMemory {
  std::int64_t parameters = 0, state = 0, gradients = 0;
  std::int64_t total() const { return parameters + state + gradients; }
  std::string parts() const;  // in MB
};
// By pipeline stage.
Result<std::vector<LeastMemory>> least_memory(const StepModel& model);

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
  std::int64_t device_bytes = 0;       // planner::PlanRequest::device_bytes
  bool compare = false;                // planner::PlanRequest::compare
  std::vector<std::string> skip = {};  // passes to leave out
  bool keep_texts = false;             // the report holds the Program after each pass
};
Result<ir::Plan> plan_step(const StepModel& model, const StepOptions& options, PlanReport* report = nullptr);
// The same by pipeline stage of the config's mesh; of one stage, the plan alone.
Result<std::vector<ir::Plan>> plan_stages(const StepModel& model, const StepOptions& options,
                                          PlanReport* report = nullptr, StageReport* stages = nullptr);
// Whole training steps of one rank, which together hold all instructions whose costs planning this config needs for
// ranks on this number of hosts. The first one has no parts.
Result<std::vector<ir::Program>> programs_to_profile(const StepModel& model, int hosts);
// The plans of a forward pass by pipeline stage. first_blocks: StepModel::first_blocks, if there are several stages.
Result<std::vector<ir::Plan>> plan_forward(const config::Config& config, const model::BuildOptions& options, int ranks,
                                           std::span<const int> first_blocks = {});

// Collective: broadcasts rank 0's plans of `count` pipeline stages as text. Each rank parses and verifies them and
// compares the hashes of the results with those of the texts. Only rank 0's plans are used; an error in `mine` on any
// rank is returned on all.
Result<std::vector<ir::Plan>> share_plans(comm::Communicator& world, Result<std::vector<ir::Plan>> mine,
                                          std::size_t count);

// Reads a plan file that a user names, in the format that `lancet plan --out` and runs write. Returns a plan that is
// sound and is of this model's training step: it has the same model, optimizer, ranks, build, parameters, states,
// inputs, outputs and instructions. Config errors name the file and the difference, or the unsound instruction.
Result<ir::Plan> read_plan(const std::filesystem::path& path, const StepModel& model);

// The same, collective: all ranks must bring the same file. An error of any rank is returned on all.
Result<ir::Plan> read_same_plan(const std::filesystem::path& path, const StepModel& model, comm::Communicator& world);

}  // namespace lancet::planner
