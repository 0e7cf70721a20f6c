// CUDA's errors as ours.
#pragma once
#include <cuda_runtime.h>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// what: the call or the kernel, for the message. An error of an earlier piece of work may come up in any later call.
inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return internal_error(std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

// After a kernel was put on a stream.
inline Status launched(const char* kernel) { return check(cudaGetLastError(), kernel); }

}  // namespace lancet::backend::cuda
