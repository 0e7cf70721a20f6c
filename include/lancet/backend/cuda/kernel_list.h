// The kernels of the module, which open_device() (device.h) loads. CUDA loads a kernel that is not listed at its first
// launch, and may first wait for all work of the device: forever, where a stream waits for a flag that is set by later
// work (CUDA Programming Guide, lazy loading, potential hazards).
#pragma once
#include <vector>

namespace lancet::backend::cuda {

// The addresses of the kernels' functions. A static variable of a function, since variables of other files are
// initialized from it.
inline std::vector<const void*>& listed_kernels() {
  static std::vector<const void*> kernels;
  return kernels;
}

// Lists a kernel while the module is loaded, as the initializer of a variable. Returns true.
inline bool list_kernel(const void* kernel) {
  listed_kernels().push_back(kernel);
  return true;
}

}  // namespace lancet::backend::cuda
