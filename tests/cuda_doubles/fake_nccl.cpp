#include "fake_nccl.h"

#include "comm/nccl/window.h"

using lancet::test::fake_nccl;

struct ncclComm {};

namespace lancet::test {
FakeNccl& fake_nccl() {
  static FakeNccl nccl;
  return nccl;
}
}  // namespace lancet::test

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
  *comm = new ncclComm;
  fake_nccl().max_ctas = config->maxCTAs;
  fake_nccl().min_ctas = config->minCTAs;
  fake_nccl().blocking = config->blocking != 0;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = fake_nccl().connects ? fake_nccl().state.load() : ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete comm;
  ++fake_nccl().aborted;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  ++fake_nccl().sends;
  return ncclInProgress;
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  ++fake_nccl().receives;
  return ncclInProgress;
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  ++fake_nccl().sums;
  return ncclInProgress;
}
const char* ncclGetErrorString(ncclResult_t) { return "remote process exited"; }
const char* ncclGetLastError(ncclComm_t) { return "as NCCL says it"; }
}  // extern "C"

namespace lancet::comm {

// The doubled NCCL has no windows.
Result<std::unique_ptr<NcclWindow>> NcclWindow::make(ncclComm_t, int, int, std::size_t, int, const Ready&) {
  return std::unique_ptr<NcclWindow>();
}

}  // namespace lancet::comm
