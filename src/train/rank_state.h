// What a rank that trains holds: its share of a host, its data, its weights and arena, and the plans bound to them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/comm/network_check.h"
#include "lancet/config/config.h"
#include "lancet/data/batches.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/run_plans.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/block.h"
#include "lancet/runtime/emulated_device.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::train {

// A rank's share of a host, and where it computes.
struct RankResources {
  int threads = 1;                              // of the compute stream
  int local_ranks = 1;                          // ranks on this host
  runtime::Accelerator* accelerator = nullptr;  // null: the CPU
  runtime::EmulatedDevice* emulated = nullptr;  // null: the ranks compute
};

// What MFU is a share of.
struct Peak {
  double flops = 0;    // of one rank, per second; 0: not known
  std::string source;  // "log.peak_tflops"
};

// Bytes of one rank.
struct MemoryPlan {
  std::int64_t process = 0;  // resident before the first allocation: code, libraries, MPI
  std::int64_t parameters = 0, state = 0, arena = 0, workspace = 0, staging = 0;  // staging: for saving
  std::int64_t total() const { return process + parameters + state + arena + workspace + staging; }
};

// Refuses a model whose weights, optimizer state and gradients cannot fit, before it is planned: planning takes minutes
// for thousands of layers.
Status check_least_memory(const planner::StepModel& model, int rank, const RankResources& resources);

// The weights and the optimizer's state, and the arena that all plans of the rank share, as only one of them runs at a
// time.
class TrainerMemory {
 public:
  // Refuses a config that does not fit the memory; then allocates the store.
  Status allocate(const config::Config& config, const run::StepPlans& plans, int ranks, const RankResources& resources);
  // Makes the arena large enough for these plans; on an accelerator as a window if the ranks among which all-to-alls go
  // can reach each other's memory. Collective over these ranks, which run one plan. No executor may be bound to the
  // arena. expert: their communicator on that stream; null: the rank is alone. Config error, of a rank that may be
  // alone with it: no memory.
  Status fit_arena(const config::Config& config, const run::StepPlans& plans, comm::DeviceCommunicator* expert,
                   const RankResources& resources);

  const MemoryPlan& plan() const { return plan_; }
  runtime::TensorStore& store() { return store_; }
  runtime::Memory arena() const { return window_.start ? window_ : arena_.memory(); }
  bool has_window() const { return window_.start != nullptr; }

 private:
  Status count(const config::Config& config, const run::StepPlans& plans, int ranks, const RankResources& resources);

  MemoryPlan plan_{.process = run::resident_bytes()};
  runtime::TensorStore store_;
  runtime::Block arena_;
  runtime::Memory window_;  // if set, replaces arena_: the expert stream's window
};

// What a micro batch says of its MoE layers, an entry for each. In the memory of the executor.
struct LayerOutputs {
  std::vector<const float*> aux;             // auxiliary loss and router entropy; empty if routers have no scores
  std::vector<std::span<const float>> load;  // [2L,E]: choices of each expert and those kept, of L runs of tokens
  std::vector<const float*> z_loss;          // empty without one
  std::vector<const std::int32_t*> rounds;   // in which choices are served; empty if capacity drops some
  std::vector<std::span<const float>> bias;  // [E], after the step; empty if experts have none
};

// The inputs and outputs of a micro batch, in the memory of the executor.
struct BoundMicroBatch {
  std::span<std::int32_t> tokens, targets;
  std::span<std::int32_t> sequence;  // empty in a plan that draws no random numbers
  const float* loss = nullptr;
  LayerOutputs layers;
};

// A plan bound to memory, with its inputs and outputs looked up once.
struct BoundStep {
  std::unique_ptr<runtime::Executor> executor;
  std::vector<BoundMicroBatch> micro_batches;  // at least one
  std::vector<std::int32_t> unread;            // tokens or targets that the plan does not read
  // Null in a plan that updates nothing.
  const float* grad_norm = nullptr;
  float* schedule = nullptr;
  float* schedule_before = nullptr;  // of the step before, if the plan lists its end
  bool crosses_steps = false;
  bool norm_crosses = false;  // the norm of a step is known when the next one has run

  static Result<BoundStep> bind(const ir::Plan& plan, runtime::TensorStore& store,
                                const runtime::ExecutorOptions& options);
};

// Initialises what the store's rank holds of every parameter, and the f32 master of each bf16 one. The values of the
// whole parameter depend on config.train.seed alone, not on the mesh. Also tells the store which rows of them are
// padding of this mesh alone (TensorStore::set_padding), without which checkpoints of other meshes cannot be read.
Status initialize_weights(const config::Config& config, runtime::TensorStore& store);

// Sets one parameter from f32 values of the elements that the store's rank holds, and its master if it has one.
Status set_parameter(runtime::TensorStore& store, std::string_view name, std::span<const float> values);

// The data that a rank trains on and is evaluated on.
class TrainingData {
 public:
  // replacement: takes the place of what the config names; may be null.
  explicit TrainingData(data::Batches* replacement) : replacement_(replacement) {}
  // sample_offset: data::SamplerOptions.
  Status open(const config::Config& config, int rank, int ranks, std::int64_t sample_offset) {
    if (replacement_) return {};
    LANCET_TRY(config::check_data(config));
    LANCET_ASSIGN(tokenizer_, data::load_tokenizer(config));
    data::TokenizerId expected;
    if (tokenizer_) expected = {tokenizer_->hash(), config.data.tokenizer};
    LANCET_ASSIGN(batches_, data::training_batches(config, expected, rank, ranks, sample_offset));
    LANCET_ASSIGN(expected, data::tokenizer_of_training(config));
    LANCET_ASSIGN(evaluation_, data::evaluation_batches(config, expected, rank, ranks));
    // An id that is no token is found now, and not once hours of training are done.
    std::vector<std::int32_t> inputs(std::size_t(config.train.micro_batch_size * config.train.seq_len)),
        targets(inputs.size());
    for (std::int64_t i = 0; evaluation_ && i < evaluation_->count; ++i)
      LANCET_TRY(evaluation_->batches->fill(i, 0, inputs, targets));
    return {};
  }

  data::Batches& batches() { return replacement_ ? *replacement_ : *batches_; }
  const std::optional<data::Tokenizer>& tokenizer() const { return tokenizer_; }  // empty: the config names none
  const std::optional<data::Evaluation>& evaluation() const { return evaluation_; }

 private:
  data::Batches* const replacement_;
  std::optional<data::Tokenizer> tokenizer_;
  std::unique_ptr<data::Batches> batches_;
  std::optional<data::Evaluation> evaluation_;
};

// The lines that a run logs before its first step.
std::string banner(const config::Config& config, int ranks, const RankResources& resources,
                   const comm::NetworkReport& network, const MemoryPlan& memory, const Peak& peak);

// The text of memory.json: an object of the parts that the banner lists, in bytes.
std::string memory_json(const MemoryPlan& memory);

// Describes the plan that runs: policy, prediction, schedule, and why it differs from the requested one. Without
// policies in the report, the schedule is left out. runs: of the plan in a step; times are of one run.
std::string describe_plan(const ir::Plan& plan, const planner::PlanReport& report, int runs);

}  // namespace lancet::train
