// The innermost product: a tile of C in registers, from operands packed so that every load is sequential.
//
// A packed operand is a row of panels. A panel holds up to W rows of op(A) (W = kTileRows) or columns of op(B)
// (W = kTileColumns) and is stored as [units of k][W], where a unit is the operand of one multiply-add:
//   one f32, or a pair of bf16 that are neighbours along k (AVX512_BF16's dot product of pairs).
// Where that instruction is missing or slow, bf16 is packed as f32. A tile sums along k in order, one chain per
// element, starting from `init`, so that neither the blocking of k nor an element's tile changes its bits.
#pragma once
#include <algorithm>
#include <array>
#include <utility>

#include "simd.h"

// AMD's cores compute dot products of pairs at twice the rate of f32, an Emerald Rapids of Intel at half of it; others
// of Intel were not tried. GCC 12.2 calls a Zen 4 znver3.
#if defined(__AVX512BF16__) && (defined(__znver3__) || defined(__znver4__) || defined(__znver5__))
#define LANCET_BF16_PAIRS
#endif

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
#if defined(LANCET_BF16_PAIRS)
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

// Packs an operand into panels.

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Number of units that hold this many elements along k.
template <class T>
constexpr std::int64_t units_of(std::int64_t elements) {
  return divide_up(elements, Packing<T>::depth);
}

LANCET_HD void make_unit(float& unit, float x, float) { unit = x; }
LANCET_HD void make_unit(float& unit, bf16 x, bf16) { unit = to_f32(x); }
#if defined(LANCET_BF16_PAIRS)
LANCET_HD void make_unit(Bf16Pair& unit, bf16 x, bf16 next) {
  unit.bits = std::uint32_t{x.bits} | std::uint32_t{next.bits} << 16;
}
#endif

namespace detail {

// Loads kLanes consecutive units along k as 32-bit lanes.
template <class T>
LANCET_HD simd::U32 load_units(const T* p) {
  if constexpr (Packing<T>::depth == 2) return simd::load_as<simd::U32>(p);
  return (simd::U32)simd::load(p);
}

// Loads kLanes adjacent units along the panel's width: p points to the row of one k, q to the row of the next.
template <class T>
LANCET_HD simd::U32 load_units(const T* p, const T* q) {
  if constexpr (Packing<T>::depth == 2)
    return simd::widen(simd::load_as<simd::U16>(p)) | simd::widen(simd::load_as<simd::U16>(q)) << 16;
  return (simd::U32)simd::load(p);
}

}  // namespace detail

// Both packers write units_of(depth) * W units in order of k, and may write up to kLanes units beyond them: the caller
// provides that memory and packs its panels from left to right.

// Packs one panel from rows that are contiguous along k: in[w * stride + k], w < width <= W, k < depth. Units beyond
// `width` become zero.
template <int W, class T>
void pack_along_k(const T* in, std::int64_t stride, int width, std::int64_t depth, typename Packing<T>::Unit* out) {
  using simd::kLanes;
  constexpr int unit_depth = Packing<T>::depth;
  const std::int64_t whole = depth / (unit_depth * kLanes) * kLanes;  // units in full vectors
  // Columns from right to left, so that units stored beyond the panel's width are overwritten by the next row of units.
  for (int w0 = (W - 1) / kLanes * kLanes; w0 >= 0; w0 -= kLanes) {
    const int lanes = std::clamp(width - w0, 0, kLanes);
    for (std::int64_t u = 0; u < whole; u += kLanes) {
      simd::U32 block[kLanes];
      if (lanes == kLanes) {
        for (int i = 0; i < kLanes; ++i) block[i] = detail::load_units(in + (w0 + i) * stride + u * unit_depth);
      } else {
        for (int i = 0; i < kLanes; ++i)
          block[i] = i < lanes ? detail::load_units(in + (w0 + i) * stride + u * unit_depth) : simd::U32{};
      }
      simd::transpose(block);
      for (int i = 0; i < kLanes; ++i) simd::store_as(out + (u + i) * W + w0, block[i]);
    }
  }
  for (std::int64_t u = whole; u < units_of<T>(depth); ++u) {
    for (int w = 0; w < W; ++w) {
      const std::int64_t k = u * unit_depth;
      T x{}, next{};
      if (w < width) x = in[w * stride + k];
      if (w < width && k + 1 < depth) next = in[w * stride + k + 1];
      make_unit(out[u * W + w], x, next);
    }
  }
}

// Packs one panel from rows that are contiguous along the panel's width: in[k * stride + w]. `readable` >= width: the
// number of elements of each row from `in` on, so that a vector may read beyond the panel's edge. The contents of units
// beyond `width` are undefined.
template <int W, class T>
void pack_across_k(const T* in, std::int64_t stride, int width, std::int64_t readable, std::int64_t depth,
                   typename Packing<T>::Unit* out) {
  using simd::kLanes;
  constexpr int unit_depth = Packing<T>::depth;
  constexpr int vectors = (W + kLanes - 1) / kLanes * kLanes;
  const std::int64_t units = units_of<T>(depth);
  const std::int64_t whole = readable >= vectors ? depth / unit_depth : 0;
  for (std::int64_t u = 0; u < whole; ++u) {
    const T* row = in + u * unit_depth * stride;
    for (int w = 0; w < vectors; w += kLanes)
      simd::store_as(out + u * W + w, detail::load_units(row + w, row + stride + w));
  }
  for (std::int64_t u = whole; u < units; ++u) {
    const T* row = in + u * unit_depth * stride;
    const bool pair = unit_depth == 2 && u * unit_depth + 1 < depth;
    for (int w = 0; w < width; ++w) make_unit(out[u * W + w], row[w], pair ? row[stride + w] : T{});
    for (int w = width; w < W; ++w) make_unit(out[u * W + w], T{}, T{});
  }
}

}  // namespace lancet::backend::cpu
