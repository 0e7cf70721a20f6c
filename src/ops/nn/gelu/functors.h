// GELU and its gradient as functions of an element-wise device kernel (device/map.h).
#pragma once
#include "math.h"
#include "ops/device/launch.h"

namespace lancet::ops::device {

struct Gelu {
  LANCET_DEVICE float operator()(float x) const { return gelu(x); }
};
struct GeluGradient {
  LANCET_DEVICE float operator()(float dy, float x) const { return dy * gelu_slope(x); }
};

}  // namespace lancet::ops::device
