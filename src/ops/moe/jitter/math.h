// The noise of a jitter, which host and device draw alike.
#pragma once
#include "lancet/base/philox.h"

namespace lancet::ops::jittered {

inline constexpr int words = 4;  // numbers of one draw

// Element i of a sequence [S,D] is multiplied by the number that word i % 4 of draw i / 4 stands for: one of 2^24
// numbers that are evenly spaced in [low, low + 2^24 * step).
struct Noise {
  std::uint64_t seed;
  float low, step;

  Noise(std::uint64_t seed_, double eps) : seed(seed_), low(float(1 - eps)), step(float(2 * eps * 0x1p-24)) {}
  LANCET_HD float factor(std::uint32_t word) const { return low + float(std::int32_t(word >> 8)) * step; }
  LANCET_HD PhiloxWords draw(std::int32_t sequence, std::int64_t i) const {
    return philox_block(seed, std::uint32_t(sequence), std::uint64_t(i));
  }
};

}  // namespace lancet::ops::jittered
