// Packs an operand into panels (tile.h).
#pragma once
#include <algorithm>

#include "tile.h"

namespace lancet::backend::cpu {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Number of units that hold this many elements along k.
template <class T>
constexpr std::int64_t units_of(std::int64_t elements) {
  return divide_up(elements, Packing<T>::depth);
}

LANCET_HD void make_unit(float& unit, float x, float) { unit = x; }
LANCET_HD void make_unit(float& unit, bf16 x, bf16) { unit = to_f32(x); }
#if defined(__AVX512BF16__)
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
