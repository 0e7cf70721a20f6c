// A thread of a block on a GPU, and the launch of a kernel. nvcc declares the CUDA runtime by itself.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

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

  // On shared or device memory. Integers only, so that the order of threads does not matter.
  LANCET_DEVICE int atomic_add(std::int32_t* at, std::int32_t v) { return atomicAdd(at, v); }
  LANCET_DEVICE void atomic_max(std::int32_t* at, std::int32_t v) { atomicMax(at, v); }

  LANCET_DEVICE void* shared_memory() const { return shared_; }        // aligned to 16 bytes
  // 2 * 32 words for the collectives.
  LANCET_DEVICE std::uint64_t* collective_scratch() const { return collective_scratch_; }

 private:
  void* shared_;
  std::uint64_t* collective_scratch_;
};

template <class BlockType, class F>
__global__ void __launch_bounds__(F::threads) run_kernel(const __grid_constant__ F kernel) {
  extern __shared__ uint4 shared[];
  __shared__ std::uint64_t collective_scratch[collective_scratch_bytes / sizeof(std::uint64_t)];
  BlockType block(shared, collective_scratch);
  kernel(block);
}

template <class BlockType, class F>
Status launch_blocks(backend::Stream& stream, std::int64_t blocks, const F& kernel, std::size_t shared) {
  if (blocks > 0x7fffffff)
    return internal_error("a launch of " + std::to_string(blocks) + " blocks, at most 2^31 - 1 fit");
  if (shared + collective_scratch_bytes > 48 * 1024) {  // CUDA grants more than 48 KB only on request
    const auto error = cudaFuncSetAttribute(reinterpret_cast<const void*>(run_kernel<BlockType, F>),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (error != cudaSuccess)
      return internal_error(std::to_string(shared) + " bytes of shared memory: " + cudaGetErrorString(error));
  }
  run_kernel<BlockType><<<unsigned(blocks), F::threads, shared, static_cast<cudaStream_t>(stream.native())>>>(kernel);
  const auto error = cudaGetLastError();
  if (error != cudaSuccess)
    return internal_error("launch of " + std::to_string(blocks) + " blocks of " + std::to_string(F::threads) + ": " +
                          cudaGetErrorString(error));
  return {};
}

}  // namespace lancet::ops::device
