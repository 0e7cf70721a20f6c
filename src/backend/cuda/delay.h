// Kernels that emulate a network: a delay on a stream, and the scaling of gradients in place of their all-reduce.
#pragma once
#include <cuda_runtime.h>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

Status delay(double milliseconds, cudaStream_t stream);  // keeps the stream busy for this time
// Writes the device's time to *mark; delay_from keeps the stream busy until `milliseconds` after *mark.
Status mark(unsigned long long* mark, cudaStream_t stream);
Status delay_from(const unsigned long long* mark, double milliseconds, cudaStream_t stream);
Status scale(float* values, std::size_t count, float factor, cudaStream_t stream);

}  // namespace lancet::backend::cuda
