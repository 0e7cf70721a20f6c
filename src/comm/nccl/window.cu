// A window of NCCL's device API for the kernels that access the peers' memory (lancet/comm/peers.h). The signals are
// after the tensors in the window. The table of the peers' addresses is made once, by a kernel, since NCCL gives them
// to kernels only. The stop word is in host memory, so that the host can end kernels whose peer never comes; NCCL's own
// barrier of kernels has none.
#include "window.h"

#include <string>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>
#endif

namespace lancet::comm {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
namespace {

// This rank's own window, too, has another address there than its tensors have.
__global__ void find_windows(ncclWindow_t window, std::byte** windows, int ranks) {
  for (int peer = int(threadIdx.x); peer < ranks; peer += int(blockDim.x))
    windows[peer] = static_cast<std::byte*>(ncclGetLsaPointer(window, 0, peer));
}

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // clears the error: training continues without a window
  return internal_error(std::string("CUDA, ") + what + ": " + cudaGetErrorString(error));
}

class LsaWindow final : public NcclWindow {
 public:
  LsaWindow(ncclComm_t comm, int rank, int ranks, int blocks)
      : comm_(comm), kernels_{{nullptr, nullptr, rank, ranks, nullptr}, {}, blocks, 0} {}
  // The communicator, which is destroyed first, has released NCCL's own resources of the window.
  ~LsaWindow() override {
    if (start_) ncclMemFree(start_);
    if (windows_) cudaFree(windows_);
    if (stop_) cudaFreeHost(stop_);
  }

  Status allocate(std::size_t bytes) {
    bytes_ = bytes;
    const std::size_t words = std::size_t(kernels_.blocks) * std::size_t(kernels_.peers.ranks);
    const std::size_t signals = (bytes + 255) / 256 * 256, all = signals + words * sizeof(std::uint32_t);
    void *memory = nullptr, *windows = nullptr, *stop = nullptr;
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
    LANCET_TRY(check(cudaMalloc(&windows, std::size_t(kernels_.peers.ranks) * sizeof(std::byte*)), "device memory"));
    windows_ = static_cast<std::byte**>(windows);
    kernels_.peers.window = start_, kernels_.peers.windows = windows_, kernels_.peers.stop = stop_;
    kernels_.signals = {reinterpret_cast<std::uint32_t*>(start_ + signals)};
    LANCET_TRY(check(cudaMemset(kernels_.signals.words, 0, all - signals), "clearing a window's signals"));
    return check(cudaDeviceSynchronize(), "clearing a window's signals");
  }

  // Kernels dereference the handle. Without symmetric memory NCCL registers the range for its own copies only and
  // returns a handle in host memory.
  Status open(const Ready& ready) override {
    LANCET_TRY(
        ready(ncclCommWindowRegister(comm_, start_, all_, &window_, NCCL_WIN_COLL_SYMMETRIC), "registering a window"));
    cudaPointerAttributes found{};
    LANCET_TRY(check(cudaPointerGetAttributes(&found, window_), "a window's handle"));
    if (!window_ || found.type != cudaMemoryTypeDevice)
      return internal_error("NCCL: expected a window that kernels reach, found one that is the host's alone");
    find_windows<<<1, 32>>>(window_, windows_, kernels_.peers.ranks);
    LANCET_TRY(check(cudaGetLastError(), "finding the peers' windows"));
    return check(cudaDeviceSynchronize(), "finding the peers' windows");
  }

  std::span<std::byte> memory() const override { return {start_, bytes_}; }

  Window next() override {
    ++kernels_.generation;
    return kernels_;
  }

  void stop() override {
    if (stop_) __atomic_store_n(stop_, 1u, __ATOMIC_RELEASE);
  }

 private:
  ncclComm_t comm_;
  std::byte* start_ = nullptr;
  std::size_t bytes_ = 0, all_ = 0;  // without and with the signals
  std::byte** windows_ = nullptr;
  std::uint32_t* stop_ = nullptr;
  ncclWindow_t window_{};
  Window kernels_;
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
