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

// Functions of the driver by name, so that nothing links to its library, which machines without a GPU lack.

// since: the CUDA version whose form of the function is wanted, e.g. 12000. False: the driver has none.
template <class Function>
bool find_call(const char* name, unsigned since, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return false;
  function = reinterpret_cast<Function>(found);
  return true;
}

}  // namespace lancet::backend::cuda
