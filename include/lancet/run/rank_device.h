// The device of a rank, a GPU or an emulated one, with its communicators; the cores that ranks share, and memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/mpi.h"
#include "lancet/config/config.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/emulated_device.h"

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

// Memory of an arena in a window of the ranks among which all-to-alls go (null: the rank is alone); empty if
// config.comm.device_all_to_all or these ranks rule a window out. Collective over them, with the same result. Config
// error: the config requires windows and these ranks have none.
Result<std::span<std::byte>> make_arena_window(const config::Config& config, comm::DeviceCommunicator* expert,
                                               std::size_t bytes);

// The banner's line of a run whose arena is such a window.
std::string describe_all_to_alls(const config::Config& config);

// Makes the communicator on the accelerator for the ranks of a communicator of the host, which outlives it. Null for a
// single rank, since its kernels copy locally. Collective over these ranks. max_ctas: thread blocks that a call may
// use; 0: the library chooses.
Result<std::unique_ptr<comm::DeviceCommunicator>> make_device_communicator(const config::Config& config,
                                                                           runtime::Accelerator& accelerator,
                                                                           comm::Communicator& host, int max_ctas);

// The MoE layers of the config's model on these ranks.
cost::RoutedModel routed_model(const config::Config& config, const cost::Layout& ranks_on_hosts);
// Loads of these (cost::Loads::read).
Result<std::shared_ptr<const cost::Loads>> read_loads(const std::string& what, const std::string& text,
                                                      const config::Config& config, const cost::Layout& ranks_on_hosts);

// The device that a rank of config.device = emulated opens, without a world. loads: in place of emulated.routing.
// Config errors: of the hardware file, of the routing, more ranks on a host than a node of that hardware has devices.
Result<std::unique_ptr<runtime::EmulatedDevice>> make_emulated_device(const config::Config& config,
                                                                      const cost::Layout& ranks_on_hosts, int rank,
                                                                      std::shared_ptr<const cost::Loads> loads = {});

// Null unless config.device is emulated. Collective. Config errors: those of make_emulated_device, the same on all
// ranks.
Result<std::unique_ptr<runtime::EmulatedDevice>> open_emulated_device(const config::Config& config,
                                                                      comm::Communicator& world, int local_ranks);

// Finds ranks that compute on the same cores.
struct SharedCores {
  int threads = 0, cores = 0;
  bool crowded() const { return threads > cores; }
};

// Collective: of the sets of cores that ranks may run on, the one with the most threads a core. threads: of this rank.
// Ranks share a set if they run under the same kernel with the same affinity, whatever their hosts are called.
Result<SharedCores> shared_cores(comm::Communicator& world, int threads);

// Reports the memory that this process uses and the memory that is still available to it.
std::int64_t resident_bytes();  // of this process, at present

// Bytes that this process can still allocate: the host's free memory, or less if a control group (cgroup v1 or v2: a
// container, a batch system's job) allows less. Empty if the system does not report it. root: for tests.
std::optional<std::int64_t> available_bytes(const std::filesystem::path& root = "/");

// Bytes that the plans of a rank, one of local_ranks on this host, may take. They follow from the memory in all, not
// from what is free, so that the next run has the same. Null: without a device; 0: unknown.
std::int64_t bytes_for_plans(int local_ranks, const backend::Device* device, const std::filesystem::path& root = "/");

// Config error: a rank, one of local_ranks on this host, needs more bytes than its share of the available memory.
// what: "the weights".
Status check_memory(std::int64_t needed, int local_ranks, std::string_view what);

}  // namespace lancet::run
