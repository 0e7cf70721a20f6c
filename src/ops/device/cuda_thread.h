// A thread of a block on a GPU, and the launch of a kernel. nvcc declares the CUDA runtime by itself.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "lancet/backend/cuda/kernel_list.h"
#include "lancet/backend/device.h"
#include "lancet/base/result.h"

#define LANCET_DEVICE __device__ __forceinline__

namespace lancet::ops::device {

class Thread {
 public:
  __device__ __forceinline__ Thread(void* shared, std::uint64_t* collective_scratch)
      : shared_(shared), collective_scratch_(collective_scratch) {}

  LANCET_DEVICE std::int64_t index() const { return blockIdx.x; }  // the block's
  LANCET_DEVICE std::int64_t count() const { return gridDim.x; }   // blocks of the launch
  LANCET_DEVICE int thread() const { return int(threadIdx.x); }

  LANCET_DEVICE void sync() { __syncthreads(); }
  LANCET_DEVICE void sync_warp() { __syncwarp(); }

  template <class T>
  LANCET_DEVICE T shuffle(T v, int from) {
    return __shfl_sync(~0u, v, from);
  }
  template <class T>
  LANCET_DEVICE T shuffle_xor(T v, int distance) {
    return __shfl_xor_sync(~0u, v, distance);
  }
  template <class T>  // the value of the thread `distance` below in the warp; the own value if there is none
  LANCET_DEVICE T shuffle_up(T v, int distance) {
    return __shfl_up_sync(~0u, v, unsigned(distance));
  }
  LANCET_DEVICE int warp_count(bool v) { return __popc(__ballot_sync(~0u, v)); }  // threads of the warp that give true

  // On shared or device memory. Integers only, so that the order of threads does not matter.
  LANCET_DEVICE int atomic_add(std::int32_t* at, std::int32_t v) { return atomicAdd(at, v); }
  LANCET_DEVICE void atomic_max(std::int32_t* at, std::int32_t v) { atomicMax(at, v); }

  // Words that other blocks, or the kernels and hosts of other ranks, write and wait for. A write is a release: whoever
  // has waited for it sees what this thread wrote before, and, after a sync(), what its block wrote before (PTX ISA,
  // memory consistency model: release and acquire patterns are cumulative).
  LANCET_DEVICE void set_word(std::uint32_t* at, std::uint32_t v) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
  }
  // On another rank's word only where the GPUs' link has atomics, as NVLink does; PCIe may have none.
  LANCET_DEVICE void add_word(std::uint32_t* at, std::uint32_t v) {
    asm volatile("red.release.sys.add.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
  }
  LANCET_DEVICE std::uint32_t load_word(const std::uint32_t* at) {
    std::uint32_t v = 0;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
  }
  // Waits until *at has reached `value`, counted modulo 2^32, or *stop is not 0; returns whether it has reached it. The
  // stop word may be in the host's memory, behind PCIe, so it is read in every 64th turn only; null: nothing stops it.
  LANCET_DEVICE bool wait_word(const std::uint32_t* at, std::uint32_t value, const std::uint32_t* stop) {
    for (unsigned turn = 1; std::int32_t(load_word(at) - value) < 0; ++turn)
      if (turn % 64 == 0 && stop && load_word(stop) != 0) return false;
    return true;
  }

  LANCET_DEVICE void* shared_memory() const { return shared_; }  // aligned to 16 bytes
  // 2 * 32 words for the collectives.
  LANCET_DEVICE std::uint64_t* collective_scratch() const { return collective_scratch_; }

 private:
  void* shared_;
  std::uint64_t* collective_scratch_;
};

// Writes 8 or 16 bytes of global memory by one instruction; `to` is aligned to that. The compiler splits a plain store
// of a struct in four or eight where it moves the address to the middle of the struct, as it does in loops.
template <class T>
LANCET_DEVICE void store_at_once(T* to, const T& value) {
  using Words = std::conditional_t<sizeof(T) == sizeof(uint4), uint4, uint2>;
  static_assert(sizeof(T) == sizeof(Words));
  Words words;
  memcpy(&words, &value, sizeof words);
  __stwb(reinterpret_cast<Words*>(to), words);
}

// The blocks_per_sm of a kernel, or as many as the threads of a multiprocessor allow, which are fewer on some
// architectures (CUDA C++ Programming Guide, compute capabilities); the compiler warns of a bound that cannot hold.
template <class F>
constexpr int blocks_bound() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ / 100 != 9 && __CUDA_ARCH__ / 100 != 10
  constexpr int most_threads = 1536;
#else
  constexpr int most_threads = 2048;
#endif
  return std::min(blocks_per_sm<F>(), most_threads / F::threads);
}

template <class BlockType, class F>
__global__ void __launch_bounds__(F::threads, blocks_bound<F>()) run_kernel(const __grid_constant__ F kernel) {
#if __CUDA_ARCH__ >= 900
  constexpr bool can_run = true;
#else
  constexpr bool can_run = cluster<F>() == 1;  // CUDA refuses to launch others there
#endif
  if constexpr (can_run) {
    extern __shared__ uint4 shared[];
    __shared__ std::uint64_t collective_scratch[collective_scratch_bytes / sizeof(std::uint64_t)];
    BlockType block(shared, collective_scratch);
    kernel(block);
  }
}

// Initialized for each kernel whose launch is compiled, which lists it to be loaded before the first launch. Static, as
// is grant_shared(): nvcc makes a kernel of its own from the same template in each source file.
template <class BlockType, class F>
static const bool listed = backend::cuda::list_kernel(reinterpret_cast<const void*>(run_kernel<BlockType, F>));

// CUDA grants a kernel more than 48 KB of shared memory only on request. The request is made once a thread, since a
// thread works on one device.
template <class BlockType, class F>
static Status grant_shared(std::size_t bytes) {
  thread_local std::size_t granted = 48 * 1024 - collective_scratch_bytes;
  if (bytes <= granted) return {};
  const auto error = cudaFuncSetAttribute(reinterpret_cast<const void*>(run_kernel<BlockType, F>),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  if (error != cudaSuccess)
    return internal_error(std::to_string(bytes) + " bytes of shared memory: " + cudaGetErrorString(error));
  granted = bytes;
  return {};
}

template <class BlockType, class F>
Status launch_blocks(backend::Stream& stream, std::int64_t blocks, const F& kernel, std::size_t shared) {
  if (blocks > 0x7fffffff)
    return internal_error("a launch of " + std::to_string(blocks) + " blocks, at most 2^31 - 1 fit");
  static_cast<void>(&listed<BlockType, F>);
  const auto* function = reinterpret_cast<const void*>(run_kernel<BlockType, F>);
  LANCET_TRY((grant_shared<BlockType, F>(shared)));
  cudaLaunchAttribute in_clusters{};
  in_clusters.id = cudaLaunchAttributeClusterDimension;
  in_clusters.val.clusterDim = {unsigned(cluster<F>()), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = unsigned(blocks), config.blockDim = F::threads;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = &in_clusters, config.numAttrs = cluster<F>() > 1 ? 1 : 0;
  void* arguments[] = {const_cast<F*>(&kernel)};
  const auto error = cudaLaunchKernelExC(&config, function, arguments);
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // so that the next launch does not report it
  return internal_error("launch of " + std::to_string(blocks) + " blocks of " + std::to_string(F::threads) + ": " +
                        cudaGetErrorString(error));
}

}  // namespace lancet::ops::device
