// What every device's gates compute alike, bit for bit: the same logits give the same route.
//
// The sum of a softmax: stream l of 32 adds the experts l, l + 32, ...; then the streams are joined 16, 8, 4, 2, 1 apart.
#pragma once
#include <cstdint>

#include "lancet/base/math.h"

namespace lancet::ops::routing {

inline constexpr int partial_sum_count = 32;

// A number that is larger for the logit that is chosen: the larger one, the lower expert of equals. A NaN is never
// chosen before a number, but that of expert 0 (in the order of comparisons from there on, nothing is larger than it).
LANCET_HD std::uint64_t choice_key(float logit, std::uint32_t expert) {
  const float number = logit == logit ? logit + 0.f : -__builtin_huge_valf();  // + 0: -0 is no less than 0
  std::uint32_t bits;
  memcpy(&bits, &number, 4);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (expert == 0 && logit != logit) bits = 0xffffffffu;
  return std::uint64_t(bits) << 32 | (0xffffffffu - expert);
}
LANCET_HD std::uint32_t expert_of_key(std::uint64_t key) { return 0xffffffffu - std::uint32_t(key); }

// The order in which a batch-prioritised gate serves: rising, equals by token (see routing.h, prioritize).
LANCET_HD std::uint32_t service_key(float weight) {
  std::uint32_t bits;
  memcpy(&bits, &weight, 4);
  return ~bits;
}

// dot: p . dp over the token's experts.
LANCET_HD float softmax_dlogit(float p, float dp, float dot) { return p * (dp - dot); }

}  // namespace lancet::ops::routing
