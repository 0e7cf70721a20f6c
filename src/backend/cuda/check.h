// Converts CUDA's errors to Status.
#pragma once
#include <cuda_runtime.h>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// what: the call or the kernel, for the message. A call may report an error of work that was queued earlier.
inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return internal_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

// Called after a kernel launch.
inline Status launched(const char* kernel) { return check(cudaGetLastError(), kernel); }

}  // namespace lancet::backend::cuda
