// NVIDIA GPUs. Part of the CUDA module, not of the program.
#pragma once
#include <memory>

#include "lancet/backend/device.h"

namespace lancet::backend::cuda {

// GPUs that this process may use. Config errors: no driver, one too old for this build, no GPU.
Result<int> count_devices();

// Takes device `index`. Config errors: its architecture is none that the module was built for; it cannot join streams
// by flags. All further calls of the process that made it go to this device.
Result<std::unique_ptr<Device>> open_device(int index);

}  // namespace lancet::backend::cuda
