// Replay: runs a plan's instructions on synthetic data, one after the other, and times each; for the profiler.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"
#include "lancet/runtime/accelerator.h"

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

Result<std::unique_ptr<Replay>> make_device_replay(const ir::Plan& plan, runtime::Accelerator& accelerator);

}  // namespace lancet::profiler
