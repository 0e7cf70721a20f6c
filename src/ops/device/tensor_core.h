// Tensor core instructions of sm_80 and later: asynchronous copies into shared memory, ldmatrix, and the product of
// 16x16 by 16x8 (PTX ISA: cp.async, ldmatrix, mma.sync.m16n8k16). On the host each is emulated thread by thread, as the
// PTX document specifies it, so that tests without a GPU check layouts and waits.
//
// Fragments of thread l of a warp, with g = l / 4 and t = l % 4; a register holds two bf16, the lower index in the
// lower half:
//   A [16,16]  a0: (g, 2t)  a1: (g + 8, 2t)  a2: (g, 2t + 8)  a3: (g + 8, 2t + 8)      row, column
//   B [16,8]   b0: (2t, g)  b1: (2t + 8, g)
//   C [16,8]   c0: (g, 2t)  c1: (g, 2t + 1)  c2: (g + 8, 2t)  c3: (g + 8, 2t + 1)      f32
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "lancet/base/dtype.h"
#include "launch.h"

namespace lancet::ops::device {

#if !defined(__CUDACC__)
namespace emulated {

// Time of an asynchronous copy: as late as the waits allow, or (false) at once. Kernels must be right with both.
inline thread_local bool late_copies = true;

inline float half_of(std::uint32_t pair, int upper) { return to_f32(bf16{std::uint16_t(pair >> (16 * upper))}); }

}  // namespace emulated
#endif

// An address in shared memory, in bytes.
#if defined(__CUDACC__)
using SharedAddress = std::uint32_t;
LANCET_DEVICE SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
}
#else
using SharedAddress = std::uintptr_t;
inline SharedAddress shared_address(const void* p) { return reinterpret_cast<SharedAddress>(p); }
#endif

// Loads four 8x8 matrices of bf16 from shared memory, one per register of `out`. Threads 8i .. 8i + 7 of the warp give
// the rows of matrix i as `row`: 16 bytes each, aligned to 16. A thread gets the elements 2t and 2t + 1 of row g of
// each matrix, or, if Transposed, of column g.
template <bool Transposed, class Block>
LANCET_DEVICE void load_matrices(Block& block, std::uint32_t (&out)[4], SharedAddress row) {
#if defined(__CUDACC__)
  (void)block;
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
#else
  LANCET_CHECK(row % 16 == 0, "ldmatrix: a row that is not aligned to 16 bytes");
  const std::uint64_t* rows = block.gather(row);
  const int g = block.warp_lane() / 4, t = block.warp_lane() % 4;
  for (int i = 0; i < 4; ++i) {
    out[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const int of = Transposed ? 2 * t + half : g, element = Transposed ? g : 2 * t + half;
      const std::uint16_t bits = reinterpret_cast<const bf16*>(rows[8 * i + of])[element].bits;
      out[i] |= std::uint32_t(bits) << (16 * half);
    }
  }
#endif
}

// c += a b; b has two registers.
template <class Block>
LANCET_DEVICE void multiply(Block& block, float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
#if defined(__CUDACC__)
  (void)block;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  struct Fragments {
    const std::uint32_t *a, *b;
  };
  const Fragments mine{a, b};
  const std::uint64_t* threads = block.gather(reinterpret_cast<std::uint64_t>(&mine));
  auto of = [&](int thread) -> const Fragments& { return *reinterpret_cast<const Fragments*>(threads[thread]); };
  const int g = block.warp_lane() / 4, t = block.warp_lane() % 4;
  for (int k = 0; k < 16; ++k) {
    const int owner = k % 8 / 2, high = k / 8, half = k % 2;
    for (int e = 0; e < 4; ++e) {
      const float x = emulated::half_of(of(4 * g + owner).a[2 * high + e / 2], half);
      const float y = emulated::half_of(of(4 * (2 * t + e % 2) + owner).b[high], half);
      c[e] += x * y;
    }
  }
  block.sync_warp();  // all threads have read the fragments
#endif
}

// A thread's copies from global to shared memory, 16 bytes each, in groups that are waited for in order.
class Copies {
 public:
#if defined(__CUDACC__)
  // Copies 16 bytes; writes zeros and reads nothing if not `there`.
  LANCET_DEVICE void start(SharedAddress shared, const void* global, bool there) {
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
  }
  // Ends the current group, which may be empty.
  LANCET_DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Waits until at most the last `Pending` groups are in flight.
  template <int Pending>
  LANCET_DEVICE void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
  }
#else
  void start(SharedAddress shared, const void* global, bool there) {
    LANCET_CHECK((shared | (there ? reinterpret_cast<std::uintptr_t>(global) : 0)) % 16 == 0,
                 "cp.async: an address that is not aligned to 16 bytes");
    pending_.push_back({reinterpret_cast<void*>(shared), there ? global : nullptr});
    if (!emulated::late_copies) carry_out(pending_.size());
  }
  void end_group() { ends_.push_back(pending_.size()); }
  template <int Pending>
  void wait() {
    if (ends_.size() > Pending) carry_out(ends_[ends_.size() - Pending - 1]);
  }

 private:
  struct Copy {
    void* to;
    const void* from;
  };
  void carry_out(std::size_t end) {
    for (; done_ < end; ++done_) {
      const Copy& copy = pending_[done_];
      if (copy.from)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
    }
  }
  std::vector<Copy> pending_;
  std::vector<std::size_t> ends_;  // number of copies started when each group ended
  std::size_t done_ = 0;
#endif
};

}  // namespace lancet::ops::device
