// The function behind base/random.h, for kernels of host and device: Philox4x32-10 (Salmon et al., SC'11). A kernel
// that draws takes its numbers from (seed, stream, index) as Philox does, so that both give the same bits.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"

namespace lancet {

// The ten rounds on the counter (c0, c1, c2, c3) under the key (k0, k1).
LANCET_HD void philox_rounds(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3,
                             std::uint32_t k0, std::uint32_t k1) {
#if !defined(__CUDACC__)  // nvcc unrolls so short a loop by itself
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = std::uint32_t(p1);
    c2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = std::uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

struct PhiloxWords {
  std::uint32_t word[4];
};

// Philox(seed, stream).block(index).
LANCET_HD PhiloxWords philox_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  PhiloxWords c{{std::uint32_t(index), std::uint32_t(index >> 32), std::uint32_t(stream), std::uint32_t(stream >> 32)}};
  philox_rounds(c.word[0], c.word[1], c.word[2], c.word[3], std::uint32_t(seed), std::uint32_t(seed >> 32));
  return c;
}

// The number in [0, 1) that Philox::uniform makes of a word.
LANCET_HD float uniform_of_word(std::uint32_t word) { return float(std::int32_t(word >> 8)) * 0x1p-24f; }

// The number in [0, bound) that a word stands for; the probabilities are equal but for bound / 2^32.
LANCET_HD std::uint32_t below_of_word(std::uint32_t word, std::uint32_t bound) {
  return std::uint32_t((std::uint64_t{word} * bound) >> 32);
}

}  // namespace lancet
