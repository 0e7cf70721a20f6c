// A symmetric window of NCCL's device API: device memory of which the kernels of every rank can access the same offset
// on all ranks. Needs NCCL 2.28 and ranks that can load from and store to each other's memory.
#pragma once
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "lancet/base/result.h"
#include "lancet/comm/peers.h"

namespace lancet::comm {

class NcclWindow {
 public:
  // Waits until NCCL has accepted a call; returns its error if it has not.
  using Ready = std::function<Status(ncclResult_t, const char*)>;
  // Allocates this rank's memory; not collective. blocks: thread blocks of the kernels. Error: the ranks cannot access
  // each other's memory, NCCL has no windows, or the device is out of memory.
  static Result<std::unique_ptr<NcclWindow>> allocate(ncclComm_t comm, int rank, int ranks, std::size_t bytes,
                                                      int blocks);
  virtual ~NcclWindow() = default;
  // Registers the memory as a window. Collective, after allocate() has succeeded on all ranks; no kernel accesses
  // it before all ranks have opened theirs. Error: NCCL refuses, or accepts the memory without making it accessible to
  // kernels. The communicator cannot be used after an error, and must be destroyed before the window.
  virtual Status open(const Ready& ready) = 0;
  virtual std::span<std::byte> memory() const = 0;
  virtual Window next() = 0;  // the arguments of the next kernel, after open()
  // Sets the stop word: kernels that wait for other ranks end, and those that start later access no rank's memory. The
  // window cannot be used afterwards.
  virtual void stop() = 0;
};

}  // namespace lancet::comm
