// The update of one weight by SGD with momentum, as torch.optim.SGD defines it.
#pragma once
#include "lancet/base/hd.h"

namespace lancet::ops {

struct Sgd {
  float momentum, weight_decay, lr;
  float scale;  // factor of the gradient, from clipping

  // Returns the new weight and updates the velocity.
  LANCET_HD float operator()(float w, float& velocity, float gradient) const {
    velocity = momentum * velocity + (gradient * scale + weight_decay * w);
    return w - lr * velocity;
  }
};

}  // namespace lancet::ops
