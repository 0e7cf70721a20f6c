// NVIDIA GPUs as backend::Device. Part of the CUDA plugin, not of the program.
#pragma once
#include <memory>

#include "lancet/backend/device.h"

namespace lancet::backend::cuda {

// Number of GPUs that this process may use. Gives the process 32 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS). Config
// errors: no driver, a driver too old for this build, no GPU, CUDA_LAUNCH_BLOCKING in the environment.
Result<int> count_devices();

// Opens device `index`, makes it the calling thread's device and loads the kernels of kernel_list.h there. Config
// errors: the module has no code for its architecture; its driver cannot join streams by flags.
Result<std::unique_ptr<Device>> open_device(int index);

}  // namespace lancet::backend::cuda
