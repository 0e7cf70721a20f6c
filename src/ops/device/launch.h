// The programming model of the device kernels. A kernel is a functor that all threads of a block run:
//
//   struct Example {
//     static constexpr int threads = 256;     // of a block: a multiple of 32, at most 1024
//     static constexpr int blocks_per_sm = 2;  // optional: blocks an SM that the compiler leaves registers for
//     static constexpr int cluster = 2;        // optional: consecutive blocks that run at the same time; needs sm_90
//     struct Shared { float tile[32][33]; };  // optional: the block's shared memory, given by block.shared<Shared>()
//     template <class Block>
//     LANCET_DEVICE void operator()(Block& block) const;
//   };
//   LANCET_TRY(launch(*args.stream, blocks, Example{...}));
//
// launch() queues a CUDA kernel on the device stream. No kernel adds floats by atomics, so two runs agree bit for bit.
//
// Only cuda_thread.h, tensor_core.h and warpgroup.h name the GPU's instructions. The tests compile the kernels with g++
// and put headers of the first two's names first on the include path (tests/doubles), which run threads and
// instructions on the host. Kernels by warpgroup.h run on a GPU alone.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lancet/backend/device.h"
#include "lancet/base/hd.h"
#include "lancet/base/result.h"

namespace lancet::ops::device {

// Scratch of the collectives of a block (reduce, exclusive_scan) in its shared memory: two halves of a word per warp.
// It comes on top of the shared memory of the kernel.
inline constexpr std::size_t collective_scratch_bytes = 64 * sizeof(std::uint64_t);

// blocks_per_sm of a kernel; 0 without one, as if the launch bounds had no second argument. A kernel that states 1 may
// get more registers than one that states none.
template <class F>
constexpr int blocks_per_sm() {
  if constexpr (requires { F::blocks_per_sm; })
    return F::blocks_per_sm;
  else
    return 0;
}

// Blocks of a kernel's cluster; 1 without clusters.
template <class F>
constexpr int cluster() {
  if constexpr (requires { F::cluster; }) {
    static_assert(F::cluster <= 8);  // more are not on every GPU
    return F::cluster;
  } else {
    return 1;
  }
}

}  // namespace lancet::ops::device

#include "ops/device/cuda_thread.h"

namespace lancet::ops::device {

inline constexpr int warp_size = 32;

struct Plus {
  template <class T>
  LANCET_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <class T>
  LANCET_DEVICE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// A kernel's view of its block. It inherits index(), count(), thread(), sync(), sync_warp(), shuffle(), shuffle_xor(),
// shuffle_up(), warp_count(), atomics, words and shared_memory() from the thread (Thread). All threads of a warp must
// call a shuffle or a function with "warp" in its name that takes a value; all threads of the block must call sync(),
// reduce(), sum(), max() and exclusive_scan().
template <int Threads>
class Block : public Thread {
 public:
  static_assert(Threads % warp_size == 0 && Threads <= 1024);
  using Thread::Thread;

  static constexpr int threads() { return Threads; }
  static constexpr int warps() { return Threads / warp_size; }
  LANCET_DEVICE int warp() const { return thread() / warp_size; }
  LANCET_DEVICE int warp_lane() const { return thread() % warp_size; }

  template <class S>
  LANCET_DEVICE S& shared() const {
    return *static_cast<S*>(shared_memory());
  }

  // Reduces over groups of `width` (a power of 2, at most 32) neighbouring threads, as a tree that first joins threads
  // width / 2 apart. Every thread of the group gets the same bits.
  template <class T, class F>
  LANCET_DEVICE T warp_reduce(T v, F f, int width = warp_size) {
#pragma unroll
    for (int distance = warp_size / 2; distance > 0; distance /= 2)
      if (distance < width) v = f(v, shuffle_xor(v, distance));
    return v;
  }
  template <class T>
  LANCET_DEVICE T warp_sum(T v, int width = warp_size) {
    return warp_reduce(v, Plus{}, width);
  }
  template <class T>
  LANCET_DEVICE T warp_max(T v, int width = warp_size) {
    return warp_reduce(v, Larger{}, width);
  }

  // Reduces over the block with one barrier: first within warps, then over the warps' results, in a fixed order.
  template <class T, class F>
  LANCET_DEVICE T reduce(T v, T nothing, F f) {
    v = warp_reduce(v, f);
    if constexpr (warps() > 1) {
      T* warp_results = next_scratch<T>();
      if (warp_lane() == 0) warp_results[warp()] = v;
      sync();
      v = warp_reduce(warp_lane() < warps() ? warp_results[warp_lane()] : nothing, f);
    }
    return v;
  }
  template <class T>
  LANCET_DEVICE T sum(T v) {
    return reduce(v, T(0), Plus{});
  }
  LANCET_DEVICE float max(float v) { return reduce(v, -__builtin_huge_valf(), Larger{}); }

  // The sum of the values of the lower threads of the block; sets `total` to the sum of all.
  template <class T>
  LANCET_DEVICE T exclusive_scan(T v, T& total) {
    const T before = warp_scan(v) - v;
    T* warp_totals = next_scratch<T>();
    if (warp_lane() == warp_size - 1) warp_totals[warp()] = before + v;
    sync();
    const T mine = warp_lane() < warps() ? warp_totals[warp_lane()] : T(0);
    const T up_to = warp_scan(mine);
    total = shuffle(up_to, warp_size - 1);
    const T below = shuffle(up_to, warp() > 0 ? warp() - 1 : 0);
    return warp() > 0 ? below + before : before;
  }

  // The sum of this thread's value and those of the lower threads of the warp.
  template <class T>
  LANCET_DEVICE T warp_scan(T v) {
#pragma unroll
    for (int distance = 1; distance < warp_size; distance *= 2) {
      const T other = shuffle_up(v, distance);
      if (warp_lane() >= distance) v = v + other;
    }
    return v;
  }

 private:
  // The halves of the scratch alternate. A thread writes to the same half again two collectives later, after the
  // barrier of the one between, which no thread reaches before it has read its results.
  template <class T>
  LANCET_DEVICE T* next_scratch() {
    static_assert(sizeof(T) <= 8);
    turn_ ^= 1;
    return reinterpret_cast<T*>(collective_scratch() + turn_ * warp_size);
  }

  int turn_ = 0;
};

// The bytes of shared memory that a kernel requests by its type Shared; 0 without one.
template <class F>
constexpr std::size_t shared_bytes() {
  if constexpr (requires { typename F::Shared; })
    return sizeof(typename F::Shared);
  else
    return 0;
}

// Queues `blocks` blocks of the kernel on the device stream, nothing if blocks is 0. It does not wait for them. blocks
// is a multiple of the kernel's cluster.
template <class F>
Status launch(backend::Stream& stream, std::int64_t blocks, const F& kernel, std::size_t shared = shared_bytes<F>()) {
  if (blocks <= 0) return {};
  if (blocks % cluster<F>() != 0)
    return internal_error("a launch of " + std::to_string(blocks) + " blocks in clusters of " +
                          std::to_string(cluster<F>()));
  return launch_blocks<Block<F::threads>>(stream, blocks, kernel, shared);
}

LANCET_HD constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace lancet::ops::device
