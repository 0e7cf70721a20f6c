// The gradient of one logit: e / sum is its softmax, and `share` is 1 / tokens of the whole batch.
#pragma once
#include "lancet/base/hd.h"

namespace lancet::ops {

LANCET_HD float cross_entropy_dlogit(float e, float inverse_sum, float share) { return e * inverse_sum * share; }
LANCET_HD float cross_entropy_dlogit_target(float e, float inverse_sum, float share) {
  return (e * inverse_sum - 1.f) * share;
}

}  // namespace lancet::ops
