// SwiGLU: silu(gate) * up, silu(x) = x sigmoid(x).
#pragma once
#include "lancet/base/math.h"

namespace lancet::ops {

LANCET_HD float swiglu(float gate, float up) { return divide_fast_f32(gate, 1.f + exp_fast_f32(-gate)) * up; }

// The gradients of both, given that of the result.
LANCET_HD float swiglu_dgate(float dy, float gate, float up) {
  const float s = divide_fast_f32(1.f, 1.f + exp_fast_f32(-gate));
  return dy * up * (s + gate * s * (1.f - s));
}
LANCET_HD float swiglu_dup(float dy, float gate) { return swiglu(gate, dy); }

}  // namespace lancet::ops
