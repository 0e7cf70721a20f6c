// CUDA streams as backend::Stream, with flags by driver calls.
#pragma once
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <memory>

#include "lancet/backend/device.h"

namespace lancet::backend::cuda {

// The driver's calls for flags, looked up at run time, so that the plugin loads on machines without the driver.
struct FlagCalls {
  PFN_cuStreamWriteValue32_v11070 write = nullptr;
  PFN_cuStreamWaitValue32_v11070 wait = nullptr;
  static Result<FlagCalls> find();  // config error: the driver lacks them
};

// copy_blocks: the most thread blocks of copy_all().
Result<std::unique_ptr<Stream>> make_stream(const FlagCalls& flags, int priority, int copy_blocks);
cudaEvent_t native_event(Event& event);

}  // namespace lancet::backend::cuda
