// Computes how much scratch memory a plan's kernels need, before the plan is bound to memory.
#pragma once
#include <cstdint>

#include "lancet/ir/plan.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::runtime {

// Bytes of scratch that an executor of the plan allocates for its kernels, summed over all streams, and of the memory
// that kernels may allocate for themselves: on the accelerator or, if it is null, on the CPU with `threads` threads.
// Error: an op has no kernel there.
Result<std::int64_t> planned_workspace(const ir::Plan& plan, Accelerator* accelerator, int threads);

}  // namespace lancet::runtime
