// Choices of experts that read no scores, which host and device make alike.
#pragma once
#include <cstdint>

#include "lancet/base/philox.h"

namespace lancet::ops::unscored {

// The expert of a token's id. The words of different ids are independent, so any number of experts is hit evenly.
LANCET_HD std::int32_t hashed_expert(std::uint64_t seed, std::int32_t token, std::int32_t experts) {
  const std::uint32_t word = philox_block(seed, 0, std::uint32_t(token)).word[0];
  return std::int32_t(below_of_word(word, std::uint32_t(experts)));
}

// A random bijection of the positions [0, n) of a sequence, for 0 < n <= 2^24. It is a Feistel network of 8 rounds over
// [0, 4^h), with the least h >= 4 for which 4^h >= n, whose round function is Philox: with fewer than 4 bits a half,
// only a few bijections could be reached. A result of n or more is mapped again until it is below n (cycle walking),
// which keeps the map a bijection of [0, n).
struct PositionShuffle {
  static constexpr std::uint32_t rounds = 8;
  std::uint64_t seed;
  std::uint32_t sequence, n;
  int half_bits = 4;

  LANCET_HD PositionShuffle(std::uint64_t seed_, std::int32_t sequence_, std::int32_t n_)
      : seed(seed_), sequence(std::uint32_t(sequence_)), n(std::uint32_t(n_)) {
    while (std::uint64_t{1} << (2 * half_bits) < n) ++half_bits;
  }
  LANCET_HD std::uint32_t operator()(std::uint32_t i) const {
    const std::uint32_t mask = (1u << half_bits) - 1;
    do {
      std::uint32_t left = i >> half_bits, right = i & mask;
      for (std::uint32_t round = 0; round < rounds; ++round) {
        const std::uint64_t index = std::uint64_t{round} << 32 | right;
        const std::uint32_t mixed = left ^ (philox_block(seed, sequence, index).word[0] & mask);
        left = right;
        right = mixed;
      }
      i = left << half_bits | right;
    } while (i >= n);
    return i;
  }
};

// The expert of a position of a sequence: the shuffled positions are dealt out to the experts in turn, from a random
// expert on, so that the experts' numbers of tokens differ by at most one and any of them may get one more.
LANCET_HD std::int32_t dealt_expert(const PositionShuffle& shuffle, std::int32_t position, std::int32_t experts) {
  constexpr std::uint64_t of_first = ~std::uint64_t{0};  // the index of no draw of a round
  const std::uint32_t first_word = philox_block(shuffle.seed, shuffle.sequence, of_first).word[0];
  const std::uint32_t first = below_of_word(first_word, std::uint32_t(experts));
  return std::int32_t((shuffle(std::uint32_t(position)) + first) % std::uint32_t(experts));
}

}  // namespace lancet::ops::unscored
