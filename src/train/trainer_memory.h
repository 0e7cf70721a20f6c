// TrainerMemory: the memory of a rank that trains: the weights and the optimizer's state, and the arena that all its
// plans share, as only one of them runs at a time.
#pragma once
#include <cstdint>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/run_plans.h"
#include "lancet/runtime/block.h"
#include "lancet/runtime/tensor_store.h"
#include "rank_resources.h"

namespace lancet::train {

// Bytes of one rank.
struct MemoryPlan {
  std::int64_t process = 0;  // resident before the first allocation: code, libraries, MPI
  std::int64_t parameters = 0, state = 0, arena = 0, workspace = 0, staging = 0;  // staging: for saving
  std::int64_t total() const { return process + parameters + state + arena + workspace + staging; }
};

// Refuses a model whose weights, optimizer state and gradients cannot fit, before it is planned: planning takes minutes
// for thousands of layers.
Status check_least_memory(const config::Config& config, int rank, int ranks, const RankResources& resources);

class TrainerMemory {
 public:
  // Refuses a config that does not fit the memory; then allocates the store and, on the CPU, the arena.
  Status allocate(const config::Config& config, const run::StepPlans& plans, int ranks, const RankResources& resources);
  // Collective: allocates the arena on the accelerator, as a window if the ranks can reach each other's memory. expert:
  // that stream's communicator of all ranks; null: the rank is alone.
  Status allocate_device_arena(const config::Config& config, comm::Communicator& world,
                               comm::DeviceCommunicator* expert, runtime::Accelerator& accelerator);

  // Not on an accelerator: makes the arena large enough for these plans. No executor may be bound to it. Config error:
  // no memory.
  Status grow_arena(const run::StepPlans& plans, const RankResources& resources);

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

}  // namespace lancet::train
