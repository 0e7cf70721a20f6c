// The factor that scales a gradient of this norm down to max_norm; 1 if max_norm is 0, which means no clipping. NaN if
// the norm is not finite, so that updates skip the step.
#pragma once
#include "lancet/base/hd.h"

namespace lancet::ops {

LANCET_HD float clip_factor(float norm, float max_norm) {
  if (!(norm - norm == 0.f)) return norm - norm;
  return max_norm > 0.f && norm > max_norm ? max_norm / norm : 1.f;
}

}  // namespace lancet::ops
