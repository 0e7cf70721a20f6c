// Arithmetic of choices by sigmoid scores that all devices share bit for bit. Sums over the experts of a token have the
// order of top_k/math.h.
#pragma once
#include "ops/moe/top_k/math.h"

namespace lancet::ops::routing {

inline constexpr std::int64_t most_expert_groups = 64;  // a set of groups is the bits of a word
inline constexpr float least_sum = 1e-20f;  // added to sums of scores, all of which may be 0 (as in DeepSeek's code)

LANCET_HD float sigmoid_f32(float x) { return 1.f / (1.f + exp_f32(-x)); }
// The gradient of one logit of score s.
LANCET_HD float sigmoid_dlogit(float s, float ds) { return ds * (s * (1.f - s)); }

// Keys of groups fall as choice_key does, by a group's score: the sum of the two largest ranks of its experts, or the
// only one. rank(e): by what the token chooses; the group has the experts [begin, end).
template <class Rank>
LANCET_HD std::uint64_t group_key(Rank rank, std::int64_t begin, std::int64_t end, std::uint32_t group) {
  std::uint64_t first = 0, second = 0;
  for (std::int64_t e = begin; e < end; ++e) {
    const std::uint64_t key = choice_key(rank(e), std::uint32_t(e));
    if (key > first) {
      second = first;
      first = key;
    } else if (key > second) {
      second = key;
    }
  }
  float score = rank(std::int64_t(expert_of_key(first)));
  if (second != 0) score += rank(std::int64_t(expert_of_key(second)));
  return choice_key(score, group);
}

// The groups with the `open` largest keys, as bits.
LANCET_HD std::uint64_t open_groups(const std::uint64_t* keys, std::int64_t groups, std::int64_t open) {
  std::uint64_t bits = 0;
  for (std::int64_t n = 0; n < open; ++n) {
    std::uint64_t best = 0;
    for (std::int64_t g = 0; g < groups; ++g)
      if (keys[g] > best && (bits >> g & 1) == 0) best = keys[g];
    bits |= std::uint64_t{1} << expert_of_key(best);
  }
  return bits;
}

}  // namespace lancet::ops::routing
