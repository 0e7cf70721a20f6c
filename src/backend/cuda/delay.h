// A kernel that takes time and nothing else.
#pragma once
#include <cuda_runtime.h>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

Status delay(double milliseconds, cudaStream_t stream);
// Success where the module holds machine code, or PTX, that the current device runs.
cudaError_t has_code();

}  // namespace lancet::backend::cuda
