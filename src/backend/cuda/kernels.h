// The backend's own kernels, and what queues them on a stream.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "lancet/backend/device.h"
#include "lancet/base/dtype.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// Many copies between device memory by one kernel: each cudaMemcpyAsync would take the host about as long as a launch.
// Unlike cudaMemcpyBatchAsync, a kernel can be part of a recorded graph.

// blocks: the most of a launch. A single copy is left to cudaMemcpyAsync.
Status copy_all(std::span<const Copy> copies, int blocks, cudaStream_t stream);
// The commands that copy_all() puts on the stream.
std::size_t copy_commands(std::size_t copies);

// To emulate a network: a delay on a stream, and the scaling of gradients in place of their all-reduce.

Status delay(double milliseconds, cudaStream_t stream);  // keeps the stream busy for this time
// Writes the device's time to *mark; delay_from keeps the stream busy until `milliseconds` after *mark.
Status mark(unsigned long long* mark, cudaStream_t stream);
Status delay_from(const unsigned long long* mark, double milliseconds, cudaStream_t stream);
Status scale(float* values, std::size_t count, float factor, cudaStream_t stream);

// Normal random numbers on the device, for operands of products that are timed: a GPU runs faster on zeros, which
// switch fewer transistors. values: `count` elements of dtype, mean 0 and standard deviation 1, another sequence for
// each seed.
Status fill_normals(void* values, DType dtype, std::size_t count, std::uint32_t seed, cudaStream_t stream);

}  // namespace lancet::backend::cuda
