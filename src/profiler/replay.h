// Replay: runs a plan's instructions on synthetic data, one after the other, and times each; for the profiler.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::profiler {

class Replay {
 public:
  // Allocates as much memory as a step of the plan. Error: an op has no kernel.
  static Result<std::unique_ptr<Replay>> create(const ir::Plan& plan, int threads,
                                                runtime::Accelerator* accelerator = nullptr);
  virtual ~Replay() = default;
  // Runs the instructions i with chosen[i], in order, and sets nanoseconds[i] to the time of each (0 for the others).
  // The first sweep must choose all. Instructions of the reduce stream are skipped.
  virtual Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) = 0;
};

// Allocates and fills memory of the host or of a device; owns it.
class ReplayMemory {
 public:
  virtual ~ReplayMemory() = default;
  // Allocates a tensor and fills it. fill(view) writes to host memory; a tensor for a device must fit there once more.
  using Fill = std::function<void(const ops::TensorView&)>;
  virtual Result<std::byte*> filled(const ir::TensorType& type, const Fill& fill) = 0;
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  // Writes normally distributed numbers times `scale`; positive: their absolute values, and never 0.
  virtual Status fill_normals(const ops::TensorView& view, float scale, bool positive) = 0;
  virtual void place(runtime::TensorStore& store) = 0;  // makes the store use memory of this kind
};
std::unique_ptr<ReplayMemory> make_host_replay_memory();
std::unique_ptr<ReplayMemory> make_device_replay_memory(backend::Device& device);

// Addresses of a plan's tensors for a replay. Tensors from which kernels compute addresses (token ids, what gates
// decide and the rows made from it) are outside the arena, so that nothing overwrites them when a sweep leaves
// instructions out.
class ReplayPlan {
 public:
  static Result<std::unique_ptr<ReplayPlan>> make(const ir::Plan& plan, ReplayMemory& memory);
  // A kernel's arguments, with addresses. Gates read logits that distribute tokens evenly, not the router's results.
  Result<ops::KernelArgs> arguments(const ir::Instruction& instruction);

 private:
  ReplayPlan(const ir::Plan& plan, ReplayMemory& memory) : plan_(plan), memory_(memory) {}
  Status fill();
  Result<std::byte*> allocate_outside_arena(ir::TensorId id);
  Result<std::byte*> normals(const ir::TensorType& type, float scale);
  std::int64_t bound_of_ids(ir::TensorId id) const;
  void fill_tokens(const ops::TensorView& view, ir::TensorId id) const;
  ops::TensorView view(ir::TensorId id);
  Result<ops::TensorView> even_logits(const ir::TensorType& type, std::int64_t choices);

  const ir::Plan& plan_;
  ReplayMemory& memory_;
  runtime::TensorStore store_;
  std::byte* arena_ = nullptr;
  std::map<std::size_t, std::byte*> outside_arena_;  // tensors outside the arena, by number
};

// Products of one size on an accelerator, one after the other, to find its peak and as computation to measure
// communication against. Collective if `world` is not null: all ranks use the same size and count.
class ProductLoop {
 public:
  // Chooses products as large as those of a training step on this device, and as many as last about `milliseconds`.
  static Result<std::unique_ptr<ProductLoop>> make(runtime::Accelerator& accelerator, comm::Communicator* world,
                                                   double milliseconds);
  // Binds `count` products of size^3 to memory, and runs them once to load code and choose algorithms.
  explicit ProductLoop(runtime::Accelerator& accelerator) : accelerator_(accelerator) {}
  Status bind(DType dtype, std::int64_t size, int count);
  // Runs all products; returns the milliseconds from the start of the first to the end of the last, by the device's
  // clock.
  Result<double> run();
  std::span<const runtime::Span> spans() const { return executor_->spans(); }  // of the last run's products

 private:
  runtime::Accelerator& accelerator_;
  runtime::TensorStore store_;
  std::unique_ptr<runtime::Executor> executor_;
};

}  // namespace lancet::profiler
