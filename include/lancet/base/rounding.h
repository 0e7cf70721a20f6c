// Stochastic rounding to bf16: up with the probability of the part that is cut off, so that the mean of many roundings
// is the number itself and updates smaller than half a bf16 step are not lost (Gupta et al., ICML 2015).
#pragma once
#include "lancet/base/dtype.h"

namespace lancet {

// Every bit of the result depends on every bit of x: the finalizer of MurmurHash3 (Appleby).
LANCET_HD std::uint32_t mix_bits(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// 32 random bits, a function of tensor (seed), step and element: the same on any device and at any number of threads.
struct RoundingBits {
  std::uint32_t key;
  LANCET_HD RoundingBits(std::uint32_t seed, std::uint32_t step) : key(mix_bits(seed ^ mix_bits(step))) {}
  LANCET_HD std::uint32_t operator()(std::int64_t element) const {
    return mix_bits(std::uint32_t(element) * 0x9e3779b9u ^ std::uint32_t(element >> 32) ^ key);
  }
};

// Of `bits` the upper half counts. Infinities and NaN stay what they are.
LANCET_HD bf16 round_stochastically(float x, std::uint32_t bits) {
  std::uint32_t u;
  memcpy(&u, &x, 4);
  if ((u & 0x7f800000u) == 0x7f800000u) return from_f32<bf16>(x);
  return bf16{std::uint16_t((u + (bits >> 16)) >> 16)};
}

}  // namespace lancet
