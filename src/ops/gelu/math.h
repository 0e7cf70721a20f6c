// GELU in its tanh form: 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). The sigmoid costs one
// exponential and loses no digits where x is far below zero.
#pragma once
#include "lancet/base/math.h"

namespace lancet::ops {

namespace detail {
LANCET_HD float gelu_gate(float x) {
  const float two_root = 1.59576912160573071f;  // 2 sqrt(2 / pi)
  return sigmoid_f32(two_root * (x + 0.044715f * x * x * x));
}
}  // namespace detail

LANCET_HD float gelu(float x) { return x * detail::gelu_gate(x); }

// d gelu / dx
LANCET_HD float gelu_slope(float x) {
  const float two_root = 1.59576912160573071f;
  const float s = detail::gelu_gate(x);
  return s + x * s * (1.f - s) * two_root * (1.f + 0.134145f * x * x);
}

}  // namespace lancet::ops
