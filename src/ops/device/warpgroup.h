// Instructions of sm_90a: barriers of shared memory that count bytes, bulk tensor copies, and the products of a group
// of four warps (PTX ISA: mbarrier, cp.async.bulk.tensor, wgmma.mma_async).
#pragma once
#include <cstdint>

#include "ops/device/tensor_core.h"

namespace lancet::ops::device {

inline constexpr int warpgroup_size = 128;

// A barrier of shared memory, 8 bytes. Its phases end one after the other, each when `arrivals` threads have arrived
// and all bytes that were expected have come.
struct PhaseBarrier {
  SharedAddress at;

  LANCET_DEVICE void init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
  }
  LANCET_DEVICE void arrive() const { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
  LANCET_DEVICE void arrive_expecting(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  // Waits until the current phase is not of this parity. The first phase has parity 0.
  LANCET_DEVICE void wait(int parity) const {
    std::uint32_t done = 0;
    do {
      asm volatile(
          "{\n\t.reg .pred p;\n\t"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
    } while (!done);
  }
};

// After the initialization of barriers, before the block's sync() and bulk copies that arrive at them.
LANCET_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Between stores to shared memory and reads of them by wgmma or bulk copies.
LANCET_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Plain accesses to shared memory of which only the address is known.
LANCET_DEVICE void store_zeros(SharedAddress at) {  // 16 bytes
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}
LANCET_DEVICE std::uint32_t load_pair(SharedAddress at) {  // two bf16
  std::uint32_t both;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(both) : "r"(at) : "memory");
  return both;
}
// A barrier of some of the block's threads.
LANCET_DEVICE void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Copies the tile of a matrix at this row and column into shared memory; its bytes arrive at `barrier`.
LANCET_DEVICE void copy_tile(SharedAddress to, const void* map, PhaseBarrier barrier, int row, int column) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier.at)
      : "memory");
}
LANCET_DEVICE void prefetch_map(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// The descriptor of an operand of wgmma in shared memory (PTX ISA: matrix descriptor), in units of 16 bytes. The
// operand is swizzled over 128 bytes (bit 62), as bulk tensor copies lay it out, and aligned to 1024.
//   Along::k: [rows][64] with k across: eight rows are 1024 bytes; `next_rows` does not count.
//   Along::rows: [k][64] with rows across: eight k are 1024 bytes; the next 64 rows begin `next_rows` bytes later.
LANCET_DEVICE std::uint64_t wgmma_operand(SharedAddress at, int next_rows) {
  return std::uint64_t(1) << 62 | std::uint64_t(1024 >> 4) << 32 | std::uint64_t(next_rows >> 4) << 16 |
         (at & 0x3ffff) >> 4;
}

LANCET_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LANCET_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
LANCET_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps accesses to the sums on their side of a wait.
template <int N>
LANCET_DEVICE void wgmma_pin(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// c = a b, or c += a b with `add`, for a [64,16] and b [16,256]. c[4 j + 2 h + i] of thread l of warp w of the group is
// the element (16 w + 8 h + l / 4, 8 j + l % 4 * 2 + i). a_across, b_across: 1 if k is not the operand's contiguous
// axis.
template <int a_across, int b_across>
LANCET_DEVICE void wgmma(float (&c)[128], std::uint64_t a, std::uint64_t b, bool add) {
#define LANCET_SUMS8(i)                                                                                       \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
#define LANCET_SUMS32(i) LANCET_SUMS8(i), LANCET_SUMS8(i + 8), LANCET_SUMS8(i + 16), LANCET_SUMS8(i + 24)
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"
      " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"
      " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"
      " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111,"
      " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n\t}"
      : LANCET_SUMS32(0), LANCET_SUMS32(32), LANCET_SUMS32(64), LANCET_SUMS32(96)
      : "l"(a), "l"(b), "r"(int(add)), "n"(a_across), "n"(b_across));
#undef LANCET_SUMS32
#undef LANCET_SUMS8
}
// The same for b [16,8], with k along.
template <int a_across>
LANCET_DEVICE void wgmma(float (&c)[4], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, %7, 0;\n\t}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "l"(a), "l"(b), "r"(int(add)), "n"(a_across));
}

// Takes registers from the warps of this group, or gives them.
template <int Registers>
LANCET_DEVICE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
LANCET_DEVICE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace lancet::ops::device
