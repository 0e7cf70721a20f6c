#include "lancet/comm/device_transports.h"

namespace lancet::comm {

Result<std::unique_ptr<DeviceCommunicator>> make_staged(const DeviceLane&) {
  return config_error("comm.transport: expected nccl for ranks on GPUs, found mpi, which is not built yet");
}

Result<std::unique_ptr<DeviceCommunicator>> make_emulated(const DeviceLane&) {
  return config_error("comm.transport: expected nccl for ranks on GPUs, found emulated, which is not built yet");
}

}  // namespace lancet::comm
