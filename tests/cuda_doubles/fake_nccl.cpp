#include "fake_nccl.h"

#include <vector>

#include "comm/nccl/window.h"

using lancet::test::fake_nccl;

struct ncclComm {
  bool finalized = false;
};

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
  ++fake_nccl().connected;
  fake_nccl().max_ctas = config->maxCTAs;
  fake_nccl().min_ctas = config->minCTAs;
  fake_nccl().blocking = config->blocking != 0;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const bool waits = !fake_nccl().connects || (comm->finalized && !fake_nccl().finalizes);
  *state = waits ? ncclInProgress : fake_nccl().state.load();
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  comm->finalized = true;
  ++fake_nccl().finalized;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->finalized) return ncclInvalidUsage;
  delete comm;
  ++fake_nccl().destroyed;
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

namespace {

class FakeWindow final : public NcclWindow {
 public:
  FakeWindow(int rank, std::size_t bytes) : rank_(rank), memory_(bytes) { ++fake_nccl().windows; }
  ~FakeWindow() override { --fake_nccl().windows; }
  Status open(const Ready& ready) override {
    ++fake_nccl().opened;
    const bool refused = fake_nccl().not_opened_on == rank_;
    LANCET_TRY(ready(refused ? ncclInvalidUsage : ncclInProgress, "a window"));
    return {};
  }
  std::span<std::byte> memory() const override { return {const_cast<std::byte*>(memory_.data()), memory_.size()}; }
  Window next() override { return {}; }
  void stop() override { ++fake_nccl().stopped; }

 private:
  const int rank_;
  std::vector<std::byte> memory_;
};

}  // namespace

Result<std::unique_ptr<NcclWindow>> NcclWindow::allocate(ncclComm_t, int rank, int, std::size_t bytes, int) {
  if (fake_nccl().no_memory_on == rank) return internal_error("no memory for a window");
  return std::unique_ptr<NcclWindow>(std::make_unique<FakeWindow>(rank, bytes));
}

}  // namespace lancet::comm
