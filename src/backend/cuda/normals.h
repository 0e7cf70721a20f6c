// Normal random numbers on the device, for operands of products that are timed: a GPU runs faster on zeros, which
// switch fewer transistors.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

#include "lancet/base/dtype.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// values: `count` elements of dtype, mean 0 and standard deviation 1, another sequence for each seed.
Status fill_normals(void* values, DType dtype, std::size_t count, std::uint32_t seed, cudaStream_t stream);

}  // namespace lancet::backend::cuda
