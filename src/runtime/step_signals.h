// StepSignals: numbers the steps of a plan for its signals, and keeps the signals below the number of the step that
// begins. Kernels set a signal to the number of their step, so nothing clears it from step to step. Its memory is
// undefined before the plan's first step, and after steps of another plan in the same arena: then it is zeroed before
// any stream continues. Until then a peer that is ahead must set no signal and write no rows, because their memory may
// still hold other tensors. A kernel therefore writes rows of a peer, and sets its signals, only after it has heard
// from the same kernel of that peer in the same step.
#pragma once
#include <cstdint>
#include <vector>

#include "bound_plan.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {

class StepSignals {
 public:
  // Needs no memory for a plan without signals. The device outlives this object.
  Status allocate(const ir::Plan& plan, const Addresses& addresses, backend::Device& device);
  // Device memory with the number of the step that runs, 1 for the first, modulo 2^32; null for a plan without signals.
  const std::uint32_t* step() const { return on_device_.memory().as<std::uint32_t>(); }
  // Called for every step when all device streams are idle, also for a plan without signals: puts the next number, and
  // zeros where the signals may be overwritten, on the device stream that the others wait for.
  Status begin_step(backend::Stream& queue);

 private:
  void add(const ops::TensorView& view);

  backend::Device* device_ = nullptr;
  Memory signals_;             // of the arena, from the first signal to the last; plan_memory puts them side by side
  Block on_device_, on_host_;  // the number
  bool first_ = true;
};

}  // namespace lancet::runtime
