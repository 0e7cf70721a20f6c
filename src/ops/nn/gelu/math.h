// GELU in its tanh form: 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). The sigmoid costs one
// exponential and is accurate for x far below zero.
#pragma once
#include "lancet/base/math.h"

namespace lancet::ops {

// 2u
LANCET_HD float gelu_argument(float x) { return x * (1.59576912160573071f + 0.0713548162726f * x * x); }

LANCET_HD float gelu(float x) { return divide_fast_f32(x, 1.f + exp_fast_f32(-gelu_argument(x))); }

// d gelu / dx = s + x s (1 - s) d(2u)/dx, s = sigmoid(2u). Far from 0, where s is 0 or 1, the last factor does not
// count, and must not be infinite.
LANCET_HD float gelu_slope(float x) {
  const float s = divide_fast_f32(1.f, 1.f + exp_fast_f32(-gelu_argument(x)));
  const float near = x < -1e4f ? -1e4f : (x > 1e4f ? 1e4f : x);
  return s + s * (1.f - s) * (near * (1.59576912160573071f + 0.2140644488178f * near * near));
}

// For map_op of both devices.
struct Gelu {
  LANCET_HD float operator()(float x) const { return gelu(x); }
};
struct GeluGradient {
  LANCET_HD float operator()(float dy, float x) const { return dy * gelu_slope(x); }
};

}  // namespace lancet::ops
