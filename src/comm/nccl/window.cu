// Rows are pushed by one kernel per call, with the same number of blocks on all ranks. Block b of a rank waits for
// block b of every other rank, copies its share of the rows (row_push.h) and waits again, so that no host takes part.
// The barrier's counters are after the tensors in the window: a rank writes the current turn into its counter on every
// peer, and one warp polls the block's own counters until all peers have written it. Now and then it also reads a stop
// flag in host memory, so that the host can end kernels whose peer never comes.
#include "window.h"

#include <string>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

#include <cuda/atomic>
#endif

namespace lancet::comm {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
namespace {

constexpr int threads = 512, warp = 32;
constexpr unsigned all_of_warp = 0xffffffff;

struct LsaPeers {
  ncclWindow_t window;
  const std::byte* start;
  __device__ __forceinline__ void* at(const void* here, int peer) const {
    return ncclGetLsaPointer(window, std::size_t(static_cast<const std::byte*>(here) - start), peer);
  }
};

// A barrier over the ranks: arrived[block, rank], in the window, is the last turn that the rank's block has reached.
// Unlike NCCL's own barrier of kernels the host can end it, so that a peer that never comes does not block the stream.
struct RankBarrier {
  std::uint32_t* arrived;
  const volatile std::uint32_t* stop;  // in host memory
  int rank, ranks;
};

using Counter = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;

// The threads of one warp call it: they wait until all counters of `row` have reached the turn; false if the host has
// stopped them. Reading the stop flag takes a turn over PCIe, so one thread reads it, and only every 64th time.
__device__ bool all_arrive(std::uint32_t* row, const RankBarrier& barrier, std::uint32_t turn) {
  const int thread = int(threadIdx.x);
  for (unsigned look = 1;; ++look) {
    bool waits = false;
#pragma unroll 1  // unrolled, the loops spill registers
    for (int peer = thread; peer < barrier.ranks; peer += warp)
      waits |= std::int32_t(Counter(row[peer]).load(cuda::memory_order_acquire) - turn) < 0;
    if (!__any_sync(all_of_warp, waits)) return true;
    if (look % 64 == 0 && __any_sync(all_of_warp, thread == 0 && *barrier.stop != 0)) return false;
  }
}

// All threads of a block call it; returns false if the host has stopped it. Afterwards the same block of every rank
// sees everything that the threads wrote before it, in any memory.
__device__ bool arrive_and_wait(const RankBarrier& barrier, const LsaPeers& peers, std::uint32_t turn) {
  __threadfence_system();
  __syncthreads();
  std::uint32_t* const row = barrier.arrived + std::size_t(blockIdx.x) * std::size_t(barrier.ranks);
#pragma unroll 1
  for (int peer = int(threadIdx.x); peer < barrier.ranks; peer += threads)
    Counter(*static_cast<std::uint32_t*>(peers.at(row + barrier.rank, peer))).store(turn, cuda::memory_order_release);
  const bool stopped = threadIdx.x < warp && !all_arrive(row, barrier, turn);
  return !__syncthreads_or(stopped);
}

// A block waits for the same block of the other ranks, not for other blocks of its own kernel, so the blocks may run in
// any order.
__global__ void __launch_bounds__(threads)
    push_rows(const __grid_constant__ RowPush rows, const __grid_constant__ LsaPeers peers,
              const __grid_constant__ RankBarrier barrier, std::uint32_t turn) {
  if (__syncthreads_or(threadIdx.x == 0 && *barrier.stop != 0)) return;  // the peers' memory may be gone already
  if (!arrive_and_wait(barrier, peers, turn)) return;
  using Push = PushRows<LsaPeers>;
  __shared__ typename Push::Found found[Push::most_at_once];
  const Push push{rows, peers, barrier.rank};
  for (std::int64_t first = 0; first < push.runs(); first += Push::most_at_once) {
    push.find(found, first, blockIdx.x, int(threadIdx.x), threads);
    __syncthreads();
    push.copy(found, first, blockIdx.x, gridDim.x, int(threadIdx.x), threads);
    __syncthreads();
  }
  arrive_and_wait(barrier, peers, turn + 1);
}

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // clears the error: training continues without a window
  return internal_error(std::string("CUDA, ") + what + ": " + cudaGetErrorString(error));
}

class LsaWindow final : public NcclWindow {
 public:
  LsaWindow(ncclComm_t comm, int rank, int ranks, int blocks) : comm_(comm), blocks_(blocks) {
    barrier_.rank = rank;
    barrier_.ranks = ranks;
  }
  // The communicator, which is destroyed first, has released NCCL's own resources of the window.
  ~LsaWindow() override {
    if (start_) ncclMemFree(start_);
    if (stop_) cudaFreeHost(stop_);
  }

  Status allocate(std::size_t bytes) {
    bytes_ = bytes;
    const std::size_t counters = (bytes + 255) / 256 * 256;
    const std::size_t all = counters + std::size_t(blocks_) * std::size_t(barrier_.ranks) * sizeof(std::uint32_t);
    void *memory = nullptr, *stop = nullptr;
    if (const ncclResult_t made = ncclMemAlloc(&memory, all); made != ncclSuccess) {
      cudaGetLastError();
      return internal_error("NCCL: cannot allocate " + std::to_string(all) +
                            " bytes of device memory for a window: " + ncclGetErrorString(made));
    }
    start_ = static_cast<std::byte*>(memory);
    all_ = all;
    LANCET_TRY(check(cudaHostAlloc(&stop, sizeof(std::uint32_t), cudaHostAllocPortable), "page-locked memory"));
    stop_ = static_cast<std::uint32_t*>(stop);
    *stop_ = 0;
    barrier_.stop = stop_;
    barrier_.arrived = reinterpret_cast<std::uint32_t*>(start_ + counters);
    LANCET_TRY(check(cudaMemset(barrier_.arrived, 0, all - counters), "clearing a window's counters"));
    return check(cudaDeviceSynchronize(), "clearing a window's counters");
  }

  // Kernels dereference the handle. Without symmetric memory NCCL registers the range for its own copies only and
  // returns a handle in host memory.
  Status open(const Ready& ready) override {
    LANCET_TRY(
        ready(ncclCommWindowRegister(comm_, start_, all_, &window_, NCCL_WIN_COLL_SYMMETRIC), "registering a window"));
    cudaPointerAttributes found{};
    LANCET_TRY(check(cudaPointerGetAttributes(&found, window_), "a window's handle"));
    if (window_ && found.type == cudaMemoryTypeDevice) return {};
    return internal_error("NCCL: expected a window that kernels reach, found one that is the host's alone");
  }

  std::span<std::byte> memory() const override { return {start_, bytes_}; }

  Status push(cudaStream_t stream, const RowPush& rows) override {
    push_rows<<<unsigned(blocks_), threads, 0, stream>>>(rows, LsaPeers{window_, start_}, barrier_, turn_);
    turn_ += 2;
    return check(cudaGetLastError(), "push_rows");
  }

  void stop() override {
    if (stop_) __atomic_store_n(stop_, 1u, __ATOMIC_RELEASE);
  }

 private:
  ncclComm_t comm_;
  const int blocks_;
  std::byte* start_ = nullptr;
  std::size_t bytes_ = 0, all_ = 0;  // without and with the counters
  std::uint32_t* stop_ = nullptr;
  ncclWindow_t window_{};
  RankBarrier barrier_{};
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
