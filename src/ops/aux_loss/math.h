#pragma once
#include "lancet/base/math.h"

namespace lancet::ops {

// -p log p, what a probability adds to an entropy; 0 at 0, NaN at NaN.
LANCET_HD float surprise(float p) { return -p * log_f32(p < 1.17549435e-38f ? 1.17549435e-38f : p); }

}  // namespace lancet::ops
