// Many copies between device memory by one kernel: each cudaMemcpyAsync would take the host about as long as a launch.
// Unlike cudaMemcpyBatchAsync, a kernel can be part of a recorded graph.
#pragma once
#include <cuda_runtime.h>

#include <span>

#include "lancet/backend/device.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

Status copy_all(std::span<const Copy> copies, cudaStream_t stream);

}  // namespace lancet::backend::cuda
