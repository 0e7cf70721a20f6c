// ReplayPlan: a plan's tensors filled with synthetic data, on the host or on a device, for a replay.
#pragma once
#include <functional>
#include <map>
#include <memory>

#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::profiler {

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

}  // namespace lancet::profiler
