// Functions of the driver by name, so that nothing links to its library, which machines without a GPU lack.
#pragma once
#include <cuda_runtime.h>

namespace lancet::backend::cuda {

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
