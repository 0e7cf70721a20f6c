// Opens the GPU that a rank trains on and makes its communicators.
#pragma once
#include <functional>
#include <memory>

#include "lancet/comm/communicator.h"
#include "lancet/comm/launch.h"
#include "lancet/config/config.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::run {

// Config error: comm.transport does not fit the number of ranks or the way they were launched.
Status check_transport(const config::Config& config, const comm::Communicator& world);

// The sources of a rank's GPU: the device module and the launcher's rank numbers. Tests replace them.
struct DeviceSource {
  std::function<Result<const runtime::AcceleratorModule*>()> load = [] {
    return runtime::load_module(runtime::cuda_module_path());
  };
  comm::Launch launch = comm::detect_launch();
};

// Opens the accelerator of config.device, the GPU with the rank's number on the host; null for the CPU. Collective.
// Config errors, the same on all ranks: no module, no driver, fewer GPUs than ranks, one GPU for two ranks.
Result<std::unique_ptr<runtime::Accelerator>> open_accelerator(const config::Config& config, comm::Communicator& world,
                                                               const DeviceSource& source = {});

// Memory of an arena in a window of all ranks of the expert stream (null: the rank is alone); empty if
// config.comm.device_all_to_all or the ranks rule a window out. Collective; the same on all ranks. Config error: the
// config requires windows and the ranks have none.
Result<std::span<std::byte>> make_arena_window(const config::Config& config, comm::DeviceCommunicator* expert,
                                               std::size_t bytes);

// The banner's line of a run whose arena is such a window.
std::string describe_all_to_alls(const config::Config& config);

// Makes the communicator on the accelerator for the ranks of a communicator of the host, which outlives it. Null for a
// single rank, since its kernels copy locally. Collective over these ranks.
Result<std::unique_ptr<comm::DeviceCommunicator>> make_device_communicator(const config::Config& config,
                                                                           runtime::Accelerator& accelerator,
                                                                           comm::Communicator& host);

}  // namespace lancet::run
