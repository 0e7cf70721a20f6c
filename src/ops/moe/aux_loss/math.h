// The term of a probability in an entropy, shared by host and device.
#pragma once
#include "lancet/base/math.h"

namespace lancet::ops {

// -p log p; 0 at 0, NaN at NaN.
LANCET_HD float surprise(float p) { return -p * log_f32(p < 1.17549435e-38f ? 1.17549435e-38f : p); }

}  // namespace lancet::ops
