// Stochastic rounding to bf16: the probability of rounding up is the fraction that truncation drops, so the expected
// value is the number itself and updates below half a bf16 step are not lost (Gupta et al., ICML 2015).
#pragma once
#include "lancet/base/dtype.h"

namespace lancet {

// The finalizer of MurmurHash3 (Appleby): every bit of the result depends on every bit of x.
LANCET_HD std::uint32_t mix_bits(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// 32 random bits as a function of seed (one per tensor), step and element, so that they do not depend on the device or
// the number of threads.
struct RoundingBits {
  std::uint32_t key;
  LANCET_HD RoundingBits(std::uint32_t seed, std::uint32_t step) : key(mix_bits(seed ^ mix_bits(step))) {}
  LANCET_HD std::uint32_t operator()(std::int64_t element) const {
    return mix_bits(std::uint32_t(element) * 0x9e3779b9u ^ std::uint32_t(element >> 32) ^ key);
  }
};

// Uses the upper 16 of `bits`. Infinities and NaN are not rounded up.
LANCET_HD bf16 round_stochastically(float x, std::uint32_t bits) {
  std::uint32_t u;
  memcpy(&u, &x, 4);
  if ((u & 0x7f800000u) == 0x7f800000u) return from_f32<bf16>(x);
  return bf16{std::uint16_t((u + (bits >> 16)) >> 16)};
}

}  // namespace lancet
