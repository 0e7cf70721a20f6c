// What a replay runs on: a plan's tensors with made-up data in them, on the host or on a device.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::profiler {

// Takes memory and fills it.
class ReplayMemory {
 public:
  virtual ~ReplayMemory() = default;
  // fill(view): on the host, small enough to be held there once more.
  using Fill = std::function<void(const ops::TensorView&)>;
  virtual Result<std::byte*> filled(const ir::TensorType& type, const Fill& fill) = 0;
  virtual Result<std::byte*> take(std::size_t bytes) = 0;
  // Normal numbers times `scale` into memory of this kind; positive: their absolute values, and not 0.
  virtual Status fill_normals(const ops::TensorView& view, float scale, bool positive) = 0;
  virtual void place(runtime::TensorStore& store) = 0;
};
std::unique_ptr<ReplayMemory> make_host_replay_memory();
std::unique_ptr<ReplayMemory> make_device_replay_memory(backend::Device& device);

// Addresses of a plan's tensors for a replay. What decides addresses lies outside the arena, where nothing overwrites
// it when a sweep leaves instructions out: token ids, routes, and the rows that came of them.
class ReplayPlan {
 public:
  static Result<std::unique_ptr<ReplayPlan>> make(const ir::Plan& plan, ReplayMemory& memory);
  // Operands and results; gates find logits that spread tokens evenly, whatever the router made.
  Result<ops::KernelArgs> arguments(const ir::Instruction& instruction);

 private:
  ReplayPlan(const ir::Plan& plan, ReplayMemory& memory) : plan_(plan), memory_(memory) {}
  Status fill();
  Result<std::byte*> aside(ir::TensorId id);
  Result<std::byte*> normals(const ir::TensorType& type, float scale);
  void fill_tokens(const ops::TensorView& view, ir::TensorId id) const;
  ops::TensorView view(ir::TensorId id);
  Result<ops::TensorView> even_logits(const ir::TensorType& type);

  const ir::Plan& plan_;
  ReplayMemory& memory_;
  runtime::TensorStore store_;
  std::byte* arena_ = nullptr;
  std::map<std::size_t, std::byte*> aside_;  // by tensor
};

}  // namespace lancet::profiler
