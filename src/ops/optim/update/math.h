// The updates of one weight, and which weights an update changes.
#pragma once
#include "lancet/base/flat_shard.h"
#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// AdamW, as torch.optim.AdamW defines it.
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

// SGD with momentum, as torch.optim.SGD defines it.
struct Sgd {
  float momentum, weight_decay, lr;
  float scale;  // factor of the gradient, from clipping

  // Returns the new weight and updates the velocity.
  LANCET_HD float operator()(float w, float& velocity, float gradient) const {
    velocity = momentum * velocity + (gradient * scale + weight_decay * w);
    return w - lr * velocity;
  }
};

// A step of a bias that balances the load. total: the sum of the counts. Counts are integers, so that the comparison
// with the mean is exact.
LANCET_HD float balanced(float bias, float count, double total, std::int64_t experts, float rate) {
  const double scaled = double(count) * double(experts);
  return scaled < total ? bias + rate : (scaled > total ? bias - rate : bias);
}

// The elements of operand 0: all, or with the attribute `shards` those of this rank's flat shard.
inline FlatRange updated_range(const KernelArgs& args) {
  const std::int64_t n = args.operands[0].elements();
  if (!args.attributes.has("shards")) return {0, n};
  return flat_range(n, args.attributes.integer("shards"), args.group.place);
}

}  // namespace lancet::ops
