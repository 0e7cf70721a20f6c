// Arithmetic of the choice of experts that all devices share bit for bit, so that the same logits give the same route.
//
// The order of the sum of a softmax is fixed: accumulator l of 32 adds the experts l, l + 32, ...; then accumulators
// 16, 8, 4, 2 and 1 apart are added.
#pragma once
#include <cstdint>

#include "lancet/base/math.h"

namespace lancet::ops::routing {

inline constexpr int partial_sum_count = 32;

// Keys that fall in the order in which a token chooses its experts: by falling logit, equals by rising expert. No two
// experts of a token have one key, and no key is 0. A NaN is never chosen before a number, except at expert 0: a search
// upward from expert 0 would keep it, since no comparison with NaN is true.
LANCET_HD std::uint64_t choice_key(float logit, std::uint32_t expert) {
  const float number = logit == logit ? logit + 0.f : -__builtin_huge_valf();  // + 0 turns -0 into 0
  std::uint32_t bits;
  memcpy(&bits, &number, 4);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (expert == 0 && logit != logit) bits = 0xffffffffu;
  return std::uint64_t(bits) << 32 | (0xffffffffu - expert);
}
LANCET_HD std::uint32_t expert_of_key(std::uint64_t key) { return 0xffffffffu - std::uint32_t(key); }

// The gradient of one logit; dot is p . dp over the token's experts.
LANCET_HD float softmax_dlogit(float p, float dp, float dot) { return p * (dp - dot); }

// The chosen experts of one token, and the gradients of their scores. A weight is scale * p_k or, normalised, scale
// times the share of the sum of the chosen scores: w_k = p_k / sum_j p_j, hence dp_k = (dw_k - sum_j dw_j w_j) / sum_j
// p_j.
struct ChosenGradient {
  const std::int32_t* expert;  // [K]
  const float* dweight;        // [K]
  std::int64_t choices;
  bool normalized;
  float scale = 1;
  float sum = 1, mean = 0;  // see find_sums

  // Finds the sums that normalised weights need; to be called before of_choice. score(e): of expert e; least: is added
  // to the sum of scores. Of several threads, thread `first` of `step` adds its share of the choices, and add(x) gives
  // the sum of x over the threads.
  template <class Score, class Add>
  LANCET_HD void find_sums(Score score, float least, int first, int step, Add add) {
    if (!normalized) return;
    float scores = 0, weighted = 0;
    for (std::int64_t k = first; k < choices; k += step) {
      const float p = score(expert[k]);
      scores += p;
      weighted += dweight[k] * p;
    }
    sum = add(scores) + least;
    mean = add(weighted) / sum;
  }
  // The gradient of the score of choice k. The share of an only choice is 1: rounding must not teach the router.
  LANCET_HD float of_choice(std::int64_t k) const {
    if (normalized && choices == 1) return 0;
    return scale * (normalized ? (dweight[k] - mean) / sum : dweight[k]);
  }
};

}  // namespace lancet::ops::routing
