// Arithmetic that the gates of all devices share bit for bit, so that the same logits give the same route.
//
// The order of the sum of a softmax is fixed: accumulator l of 32 adds the experts l, l + 32, ...; then accumulators
// 16, 8, 4, 2 and 1 apart are added.
#pragma once
#include <cstdint>

#include "lancet/base/math.h"

namespace lancet::ops::routing {

inline constexpr int partial_sum_count = 32;

// A key that is largest for the chosen expert: the one with the largest logit, the lowest expert of equals. A NaN is
// never chosen before a number, except at expert 0: the host compares upward from expert 0, and no comparison with NaN
// is true.
LANCET_HD std::uint64_t choice_key(float logit, std::uint32_t expert) {
  const float number = logit == logit ? logit + 0.f : -__builtin_huge_valf();  // + 0 turns -0 into 0
  std::uint32_t bits;
  memcpy(&bits, &number, 4);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (expert == 0 && logit != logit) bits = 0xffffffffu;
  return std::uint64_t(bits) << 32 | (0xffffffffu - expert);
}
LANCET_HD std::uint32_t expert_of_key(std::uint64_t key) { return 0xffffffffu - std::uint32_t(key); }

// A batch-prioritised gate serves tokens by rising key, equal keys by token (see prioritize in routing.h).
LANCET_HD std::uint32_t service_key(float weight) {
  std::uint32_t bits;
  memcpy(&bits, &weight, 4);
  return ~bits;
}

// The gradient of one logit; dot is p . dp over the token's experts.
LANCET_HD float softmax_dlogit(float p, float dp, float dot) { return p * (dp - dot); }

}  // namespace lancet::ops::routing
