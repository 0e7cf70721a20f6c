// The transports of DeviceCommunicator. Each function makes the communicator of one stream from that stream's host
// communicator; it is collective, and called in the same order on all ranks.
#pragma once
#include <chrono>
#include <memory>

#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {

struct DeviceStream {
  backend::Device* device = nullptr;
  Communicator* host = nullptr;  // over the same ranks; outlives the result
  int max_ctas = 0;              // thread blocks that a collective may use; 0: the library chooses
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

// "mpi": through page-locked host memory and the stream's host communicator.
Result<std::unique_ptr<DeviceCommunicator>> make_staged(const DeviceStream& stream);
// "mirrored": calls last as long as on a declared network. Config error: stream.host is not of a mirrored world
// (mirrored.h).
Result<std::unique_ptr<DeviceCommunicator>> make_mirrored(const DeviceStream& stream);
// "nccl": of the CUDA plugin. Config error: built without NCCL.
Result<std::unique_ptr<DeviceCommunicator>> make_nccl(const DeviceStream& stream);

}  // namespace lancet::comm
