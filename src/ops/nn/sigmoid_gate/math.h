#pragma once
#include "lancet/base/math.h"

namespace lancet::ops {

LANCET_HD float sigmoid(float x) { return divide_fast_f32(1.f, 1.f + exp_fast_f32(-x)); }

}  // namespace lancet::ops
