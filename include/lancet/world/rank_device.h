// The GPU that a rank trains on.
#pragma once
#include <array>
#include <functional>
#include <memory>

#include "lancet/comm/communicator.h"
#include "lancet/comm/launch.h"
#include "lancet/config/config.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::world {

// What comm.transport asks of this start that it cannot give.
Status check_transport(const config::Config& config, const comm::Communicator& world);

// Where a rank's GPU comes from.
struct DeviceSource {
  std::function<Result<const runtime::AcceleratorModule*>()> load = [] {
    return runtime::load_module(runtime::cuda_module_path());
  };
  comm::Launch launch = comm::detect_launch();
};

// The accelerator that config.device asks for, null for the CPU: the rank's GPU by its number on the host. Collective;
// config errors, the same on all ranks: no module, no driver, fewer GPUs than ranks, one GPU for two ranks.
Result<std::unique_ptr<runtime::Accelerator>> open_accelerator(const config::Config& config, comm::Communicator& world,
                                                               const DeviceSource& source = {});

using DeviceStreams = std::array<std::unique_ptr<comm::DeviceCommunicator>, ir::stream_count>;

// Memory of an arena: in a window of the expert stream where config.comm.device_all_to_all wants one and the ranks have it;
// else empty. wanted: by the plan, whose all-to-alls may all be faster without (auto). Collective; the same on all
// ranks. Config error: windows are asked for, and there are none.
Result<std::span<std::byte>> make_arena_window(const config::Config& config, const DeviceStreams& streams,
                                               std::size_t bytes, bool wanted);
// The banner's line: which way the tokens take, and why. choice: StepPlans::exchanges.
std::string describe_all_to_alls(const config::Config& config, bool window, const std::string& choice);

// The streams' communicators on the accelerator, from those of the host. A rank alone has none: its kernels copy.
// Collective.
Result<DeviceStreams> make_device_streams(const config::Config& config, runtime::Accelerator& accelerator,
                                      const std::array<std::unique_ptr<comm::Communicator>, ir::stream_count>& host);

}  // namespace lancet::world
