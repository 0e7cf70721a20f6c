// A symmetric window of NCCL's device API over device memory: what lies at one place in it is reached by the kernels of
// all ranks. From NCCL 2.28 on, among ranks that load and store each other's memory.
#pragma once
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "lancet/base/result.h"
#include "lancet/comm/row_push.h"

namespace lancet::comm {

class NcclWindow {
 public:
  // Waits until NCCL has taken a call in, or says why not.
  using Ready = std::function<Status(ncclResult_t, const char*)>;
  // The memory of this rank's part; no rank waits for another. blocks: of the kernels. Error: not all ranks reach each
  // other, NCCL has no windows, no memory is left.
  static Result<std::unique_ptr<NcclWindow>> allocate(ncclComm_t comm, int rank, int ranks, std::size_t bytes,
                                                      int blocks);
  virtual ~NcclWindow() = default;
  // Collective, once all ranks have their memory; no rank pushes before all have opened theirs. Error: NCCL refuses, or
  // takes the memory without making it reachable. The communicator is of no use then, and ends before this does.
  virtual Status open(const Ready& ready) = 0;
  virtual std::span<std::byte> memory() const = 0;
  virtual Status push(cudaStream_t stream, const RowPush& exchange) = 0;
  // Kernels that wait for other ranks end, and those that start later touch nobody's memory. The window is of no use
  // afterwards.
  virtual void stop() = 0;
};

}  // namespace lancet::comm
