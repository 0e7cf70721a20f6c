// Vectors of the machine's width by GCC's vector extensions, and the few instructions that these do not cover.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "lancet/base/dtype.h"

namespace lancet::backend::cpu::simd {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;  // f32 per vector
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float F32 __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t U32 __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t I32 __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t U16 __attribute__((vector_size(kLanes * 2)));

template <class V>
LANCET_HD V load_as(const void* p) {
  V v;
  memcpy(&v, p, sizeof(V));
  return v;
}
template <class V>
LANCET_HD void store_as(void* p, V v) {
  memcpy(p, &v, sizeof(V));
}

LANCET_HD F32 splat(float x) { return F32{} + x; }

LANCET_HD U32 widen(U16 v) { return __builtin_convertvector(v, U32); }

LANCET_HD F32 load(const float* p) { return load_as<F32>(p); }
LANCET_HD F32 load(const bf16* p) { return (F32)(widen(load_as<U16>(p)) << 16); }

// Rounds each lane to bf16, ties to even. NaN stays NaN.
LANCET_HD U16 round_bf16(F32 v) {
#if defined(__AVX512BF16__)
  return (U16)_mm512_cvtneps_pbh((__m512)v);
#else
  const U32 u = (U32)v;
  const U32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const I32 nan = (u & 0x7fffffffu) > 0x7f800000u;
  return __builtin_convertvector((rounded & ~(U32)nan) | ((U32)nan & 0x7fffu), U16);
#endif
}

LANCET_HD void store(float* p, F32 v) { store_as(p, v); }
LANCET_HD void store(bf16* p, F32 v) { store_as(p, round_bf16(v)); }

LANCET_HD F32 max(F32 a, F32 b) { return a > b ? a : b; }

// Interleaves a and b; returns the half of the result that begins with their lanes `First`.
template <int First, std::size_t... Lane>
LANCET_HD U32 interleave(U32 a, U32 b, std::index_sequence<Lane...>) {
  return __builtin_shufflevector(a, b, (Lane % 2 * kLanes + Lane / 2 + First)...);
}

// rows[i][j] <-> rows[j][i]: log2(kLanes) rounds of interleaving row i with row i + kLanes / 2.
LANCET_HD void transpose(U32 (&rows)[kLanes]) {
  constexpr auto lanes = std::make_index_sequence<kLanes>();
  for (int round = 1; round < kLanes; round *= 2) {
    U32 mixed[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      mixed[2 * i] = interleave<0>(rows[i], rows[i + kLanes / 2], lanes);
      mixed[2 * i + 1] = interleave<kLanes / 2>(rows[i], rows[i + kLanes / 2], lanes);
    }
    for (int i = 0; i < kLanes; ++i) rows[i] = mixed[i];
  }
}

}  // namespace lancet::backend::cpu::simd
