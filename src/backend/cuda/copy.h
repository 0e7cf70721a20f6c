// Many copies between device memory by one kernel: each cudaMemcpyAsync would take the host about as long as a launch.
// Unlike cudaMemcpyBatchAsync, a kernel can be part of a recorded graph.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <span>

#include "lancet/backend/device.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// blocks: the most of a launch. A single copy is left to cudaMemcpyAsync.
Status copy_all(std::span<const Copy> copies, int blocks, cudaStream_t stream);
// The commands that copy_all() puts on the stream.
std::size_t copy_commands(std::size_t copies);

}  // namespace lancet::backend::cuda
