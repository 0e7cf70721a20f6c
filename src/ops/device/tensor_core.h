// Tensor core instructions of sm_80 and later: asynchronous copies into shared memory, ldmatrix, and the product of
// 16x16 by 16x8 (PTX ISA: cp.async, ldmatrix, mma.sync.m16n8k16).
//
// Fragments of thread l of a warp, with g = l / 4 and t = l % 4; a register holds two bf16, the lower index in the
// lower half:
//   A [16,16]  a0: (g, 2t)  a1: (g + 8, 2t)  a2: (g, 2t + 8)  a3: (g + 8, 2t + 8)      row, column
//   B [16,8]   b0: (2t, g)  b1: (2t + 8, g)
//   C [16,8]   c0: (g, 2t)  c1: (g, 2t + 1)  c2: (g + 8, 2t)  c3: (g + 8, 2t + 1)      f32
#pragma once
#include <cstdint>

#include "ops/device/launch.h"

namespace lancet::ops::device {

using SharedAddress = std::uint32_t;  // an address in shared memory, in bytes
LANCET_DEVICE SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
}

// Loads four 8x8 matrices of bf16 from shared memory, one per register of `out`. Threads 8i .. 8i + 7 of the warp give
// the rows of matrix i as `row`: 16 bytes each, aligned to 16. A thread gets the elements 2t and 2t + 1 of row g of
// each matrix, or, if Transposed, of column g.
template <bool Transposed, class Block>
LANCET_DEVICE void load_matrices(Block& block, std::uint32_t (&out)[4], SharedAddress row) {
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
}

// c += a b; b has two registers. Volatile, although it writes registers only: all threads of the warp must take part,
// so the compiler must not move it into a branch that only some threads take.
template <class Block>
LANCET_DEVICE void multiply(Block& block, float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  (void)block;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A thread's copies from global to shared memory, 16 bytes each, in groups that are waited for in order.
class Copies {
 public:
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
};

}  // namespace lancet::ops::device
