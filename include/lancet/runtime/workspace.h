// The scratch of kernels, before there is memory to bind a plan to.
#pragma once
#include <cstdint>

#include "lancet/ir/plan.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::runtime {

// Bytes that an executor of the plan takes for its kernels' scratch, over all streams, on the accelerator or, where it is
// null, on the CPU with so many threads. Error: an op without a kernel there.
Result<std::int64_t> planned_workspace(const ir::Plan& plan, Accelerator* accelerator, int threads);

}  // namespace lancet::runtime
