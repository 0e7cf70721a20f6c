// What an emulated wire does to a stream and to the gradients that travel.
#pragma once
#include <cuda_runtime.h>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// Takes time and nothing else.
Status delay(double milliseconds, cudaStream_t stream);
// The device's time into *mark, and a delay that counts from it.
Status mark(unsigned long long* mark, cudaStream_t stream);
Status delay_from(const unsigned long long* mark, double milliseconds, cudaStream_t stream);
Status scale(float* values, std::size_t count, float factor, cudaStream_t stream);
// Success where the module holds machine code, or PTX, that the current device runs.
cudaError_t has_code();

}  // namespace lancet::backend::cuda
