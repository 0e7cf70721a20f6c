// The update of one weight by AdamW, as torch.optim.AdamW defines it.
#pragma once
#include "lancet/base/hd.h"

namespace lancet::ops {

struct AdamW {
  float beta1, rest1, beta2, rest2;  // rest = 1 - beta, rounded once
  float eps;
  float scale;        // factor of the gradient, from clipping
  float keep;         // 1 - lr * weight decay
  float step;         // lr / (1 - beta1^t)
  float denominator;  // 1 / sqrt(1 - beta2^t)

  // Returns the new weight and updates both moments.
  LANCET_HD float operator()(float w, float& m, float& v, float gradient) const {
    const float g = gradient * scale;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    return keep * w - step * m / (__builtin_sqrtf(v) * denominator + eps);
  }
};

}  // namespace lancet::ops
