#include "window.h"

#include <string>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

#include <cuda/atomic>
#endif

namespace lancet::comm {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
namespace {

constexpr int threads = 512;

struct LsaPeers {
  ncclWindow_t window;
  const std::byte* start;
  __device__ __forceinline__ void* at(const void* here, int peer) const {
    return ncclGetLsaPointer(window, std::size_t(static_cast<const std::byte*>(here) - start), peer);
  }
};

// Where the ranks meet: arrived[block, rank], in the window, says how often that rank has come. Unlike NCCL's own
// barrier of kernels it ends when the host says so, so that a peer that never comes does not hold the stream.
struct Meeting {
  std::uint32_t* arrived;
  const volatile std::uint32_t* stop;  // the host's
  int rank, ranks;
};

using Counter = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;

// All threads of a block call it; false where the host has stopped it. What any thread has written anywhere is seen by
// the same block of every rank.
__device__ bool meet(const Meeting& meeting, const LsaPeers& peers, std::uint32_t turn) {
  __threadfence_system();
  __syncthreads();
  bool stopped = false;
  for (int peer = int(threadIdx.x); peer < meeting.ranks; peer += threads) {
    std::uint32_t* row = meeting.arrived + std::size_t(blockIdx.x) * std::size_t(meeting.ranks);
    Counter(*static_cast<std::uint32_t*>(peers.at(row + meeting.rank, peer))).store(turn, cuda::memory_order_release);
    const Counter theirs(row[peer]);
    while (!stopped && std::int32_t(theirs.load(cuda::memory_order_acquire) - turn) < 0) stopped = *meeting.stop != 0;
  }
  return !__syncthreads_or(stopped);
}

// A block waits for the same block of the other ranks, not for its neighbours: none must run before another.
__global__ void __launch_bounds__(threads)
    push_rows(const __grid_constant__ RowPush exchange, const __grid_constant__ LsaPeers peers,
              const __grid_constant__ Meeting meeting, std::uint32_t turn) {
  if (__syncthreads_or(threadIdx.x == 0 && *meeting.stop != 0)) return;  // the peers' memory may be gone already
  if (!meet(meeting, peers, turn)) return;
  using Push = PushRows<LsaPeers>;
  __shared__ typename Push::Found found[Push::most_at_once];
  const Push push{exchange, peers, meeting.rank};
  for (std::int64_t first = 0; first < push.stretches(); first += Push::most_at_once) {
    push.find(found, first, blockIdx.x, int(threadIdx.x), threads);
    __syncthreads();
    push.copy(found, first, blockIdx.x, gridDim.x, int(threadIdx.x), threads);
    __syncthreads();
  }
  meet(meeting, peers, turn + 1);
}

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // training goes on without a window: it is no error of the next call
  return internal_error(std::string("CUDA, ") + what + ": " + cudaGetErrorString(error));
}

class LsaWindow final : public NcclWindow {
 public:
  LsaWindow(ncclComm_t comm, int rank, int ranks, int blocks) : comm_(comm), blocks_(blocks) {
    meeting_.rank = rank;
    meeting_.ranks = ranks;
  }
  // What NCCL holds for it goes with the communicator, which ends first.
  ~LsaWindow() override {
    if (start_) ncclMemFree(start_);
    if (stop_) cudaFreeHost(stop_);
  }

  Status allocate(std::size_t bytes) {
    bytes_ = bytes;
    const std::size_t counters = (bytes + 255) / 256 * 256;
    const std::size_t all = counters + std::size_t(blocks_) * std::size_t(meeting_.ranks) * sizeof(std::uint32_t);
    void *memory = nullptr, *stop = nullptr;
    if (const ncclResult_t made = ncclMemAlloc(&memory, all); made != ncclSuccess) {
      cudaGetLastError();
      return internal_error("NCCL: expected " + std::to_string(all) +
                            " bytes of device memory for a window, found: " + ncclGetErrorString(made));
    }
    start_ = static_cast<std::byte*>(memory);
    all_ = all;
    LANCET_TRY(check(cudaHostAlloc(&stop, sizeof(std::uint32_t), cudaHostAllocPortable), "page-locked memory"));
    stop_ = static_cast<std::uint32_t*>(stop);
    *stop_ = 0;
    meeting_.stop = stop_;
    meeting_.arrived = reinterpret_cast<std::uint32_t*>(start_ + counters);
    LANCET_TRY(check(cudaMemset(meeting_.arrived, 0, all - counters), "clearing a window's counters"));
    return check(cudaDeviceSynchronize(), "clearing a window's counters");
  }

  // Kernels follow the handle. Where NCCL has no symmetric memory it registers the range for its own copies and gives a
  // handle of the host's.
  Status open(const Ready& ready) override {
    LANCET_TRY(ready(ncclCommWindowRegister(comm_, start_, all_, &window_, NCCL_WIN_COLL_SYMMETRIC), "a window"));
    cudaPointerAttributes found{};
    LANCET_TRY(check(cudaPointerGetAttributes(&found, window_), "a window's handle"));
    if (window_ && found.type == cudaMemoryTypeDevice) return {};
    return internal_error("NCCL: expected a window that kernels reach, found one that is the host's alone");
  }

  std::span<std::byte> memory() const override { return {start_, bytes_}; }

  Status push(cudaStream_t stream, const RowPush& exchange) override {
    push_rows<<<unsigned(blocks_), threads, 0, stream>>>(exchange, LsaPeers{window_, start_}, meeting_, turn_);
    turn_ += 2;
    return check(cudaGetLastError(), "an exchange within the node");
  }

  void stop() override {
    if (stop_) __atomic_store_n(stop_, 1u, __ATOMIC_RELEASE);
  }

 private:
  ncclComm_t comm_;
  const int blocks_;
  std::byte* start_ = nullptr;
  std::size_t bytes_ = 0, all_ = 0;  // the window's; with the counters
  std::uint32_t* stop_ = nullptr;
  ncclWindow_t window_{};
  Meeting meeting_{};
  std::uint32_t turn_ = 1;
};

}  // namespace

Result<std::unique_ptr<NcclWindow>> NcclWindow::allocate(ncclComm_t comm, int rank, int ranks, std::size_t bytes,
                                                         int blocks) {
  if (const int reached = ncclTeamLsa(comm).nRanks; reached != ranks)
    return internal_error("NCCL: expected " + std::to_string(ranks) + " ranks that reach each other's memory, found " +
                          std::to_string(reached));
  auto window = std::make_unique<LsaWindow>(comm, rank, ranks, blocks);
  LANCET_TRY(window->allocate(bytes));
  return std::unique_ptr<NcclWindow>(std::move(window));
}

#else

Result<std::unique_ptr<NcclWindow>> NcclWindow::allocate(ncclComm_t, int, int, std::size_t, int) {
  return internal_error("NCCL: expected NCCL 2.28 or later for windows, found a build with an older one");
}

#endif

}  // namespace lancet::comm
