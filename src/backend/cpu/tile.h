// The innermost product: a tile of C in registers, from operands packed so that every load is sequential.
//
// A packed operand is a row of panels. A panel holds up to W rows of op(A) (W = kTileRows) or columns of op(B)
// (W = kTileColumns) and is stored as [units of k][W], where a unit is the operand of one multiply-add:
//   one f32, or a pair of bf16 that are neighbours along k (AVX512_BF16's dot product of pairs).
// Without that instruction bf16 is packed as f32. A tile sums along k in order, one chain per element, starting
// from `init`, so that neither the blocking of k nor an element's tile changes its bits.
#pragma once
#include <array>
#include <utility>

#include "simd.h"

namespace lancet::backend::cpu {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 14;  // 28 accumulators, 2 columns of B, 1 broadcast: 31 of 32 registers
#else
inline constexpr int kTileRows = 6;  // 12 accumulators of 16 registers
#endif
inline constexpr int kTileColumns = 2 * simd::kLanes;

// The packing of an element type: the type of a unit, and the number of elements along k in it.
template <class T>
struct Packing {
  using Unit = float;
  static constexpr int depth = 1;
};
#if defined(__AVX512BF16__)
struct Bf16Pair {
  std::uint32_t bits;  // the earlier element in the low half
};
template <>
struct Packing<bf16> {
  using Unit = Bf16Pair;
  static constexpr int depth = 2;
};
LANCET_HD void multiply_add(simd::F32& sum, Bf16Pair a, simd::F32 b) {
  sum = (simd::F32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a.bits)), (__m512bh)b);
}
#endif
LANCET_HD void multiply_add(simd::F32& sum, float a, simd::F32 b) { sum += a * b; }

// out[i][0..kTileColumns) = init[i][..] + sum over units of a(i, unit) * b[unit][..], for i < Rows.
// a(i, unit) = a[unit * AUnit + i * ARow], b[unit] = b + unit * BUnit. init: null is zero; init_stride 0 repeats one
// row (a bias).
template <int Rows, int ARow, int AUnit, int BUnit, class Unit, class Out>
void tile(std::int64_t units, const Unit* a, const Unit* b, const float* init, std::int64_t init_stride, Out* out,
          std::int64_t out_stride) {
  using simd::F32;
  F32 sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    sum[i][0] = init ? simd::load(init + i * init_stride) : F32{};
    sum[i][1] = init ? simd::load(init + i * init_stride + simd::kLanes) : F32{};
  }
  for (std::int64_t u = 0; u < units; ++u) {
    const F32 b0 = simd::load_as<F32>(b);
    const F32 b1 = simd::load_as<F32>(b + simd::kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const Unit x = a[i * ARow];
      multiply_add(sum[i][0], x, b0);
      multiply_add(sum[i][1], x, b1);
    }
    a += AUnit;
    b += BUnit;
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    simd::store(out + i * out_stride, sum[i][0]);
    simd::store(out + i * out_stride + simd::kLanes, sum[i][1]);
  }
}

template <class Unit, class Out>
using TileFunction = void (*)(std::int64_t units, const Unit* a, const Unit* b, const float* init,
                              std::int64_t init_stride, Out* out, std::int64_t out_stride);

// Returns the function for a tile of `rows` rows (1..kTileRows); `a` is packed as panels by default.
template <class Unit, class Out, int ARow = 1, int AUnit = kTileRows, int BUnit = kTileColumns>
TileFunction<Unit, Out> tile_function(int rows) {
  static constexpr auto table = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<TileFunction<Unit, Out>, sizeof...(R)>{&tile<R + 1, ARow, AUnit, BUnit, Unit, Out>...};
  }
  (std::make_integer_sequence<int, kTileRows>());
  return table[static_cast<std::size_t>(rows - 1)];
}

}  // namespace lancet::backend::cpu
