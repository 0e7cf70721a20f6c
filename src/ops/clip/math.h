// The factor that brings a gradient of this norm down to max_norm; 0 does not clip. NaN where the norm
// is not finite: updates skip then.
#pragma once
#include "lancet/base/hd.h"

namespace lancet::ops {

LANCET_HD float clip_factor(float norm, float max_norm) {
  if (!(norm - norm == 0.f)) return norm - norm;
  return max_norm > 0.f && norm > max_norm ? max_norm / norm : 1.f;
}

}  // namespace lancet::ops
