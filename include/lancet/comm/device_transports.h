// How ranks whose tensors lie on devices reach each other. Each is one lane, made from that lane's host communicator:
// collective, and in the same order on all ranks.
#pragma once
#include <chrono>
#include <memory>

#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {

struct DeviceLane {
  backend::Device* device = nullptr;
  Communicator* host = nullptr;  // over the same ranks; outlives the result
  int max_ctas = 0;              // thread blocks that a collective may take; 0: as the library chooses
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

// "mpi": through page-locked host memory and the lane's host communicator.
Result<std::unique_ptr<DeviceCommunicator>> make_staged(const DeviceLane& lane);
// "emulated": takes the time that a declared network would. lane.host is of an emulated world (emulated.h), else a
// config error.
Result<std::unique_ptr<DeviceCommunicator>> make_emulated(const DeviceLane& lane);
// "nccl": of the CUDA module. Config error: built without NCCL.
Result<std::unique_ptr<DeviceCommunicator>> make_nccl(const DeviceLane& lane);

}  // namespace lancet::comm
