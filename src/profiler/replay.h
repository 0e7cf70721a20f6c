// A plan's compute stream on made-up data, for the profiler.
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
  // Takes the memory that a step of the plan takes. Errors: an op without a kernel.
  static Result<std::unique_ptr<Replay>> create(const ir::Plan& plan, int threads, runtime::Accelerator* accelerator = nullptr);
  virtual ~Replay() = default;
  // Runs the instructions i with chosen[i], in order; nanoseconds[i] is then the time of each. The first sweep must
  // choose all. Instructions of the reduce stream are passed over.
  virtual Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) = 0;
};

Result<std::unique_ptr<Replay>> make_stream_replay(const ir::Plan& plan, runtime::Accelerator& accelerator);

}  // namespace lancet::profiler
