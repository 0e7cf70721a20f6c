// SGD with momentum, in place: v = momentum * v + (gradient + weight_decay * w); w -= lr * v.
// sgd(&w, &v, gradient, schedule [, &master]); schedule, master and shards as in adamw.
#include "ops/update.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) { return infer_update(in, 1); }

Work work(const OpInput& in) {
  const double elements = double(in.operands[1].shape.elements());
  const bool master = in.operands.size() > 4, stochastic = in.attributes.has("rounding_seed");
  return {5 * elements, elements * (master ? 22 : stochastic ? 16 : 20)};
}

const Attributes sample_attributes{{"momentum", 0.9}, {"weight_decay", 0.01}};
const Attributes rounded_attributes{{"momentum", 0.9}, {"weight_decay", 0.01}, {"rounding_seed", 7}};

const OpDef table[] = {
    {.name = "sgd",
     .required = 4,
     .most = 5,
     .infer = infer,
     .work = work,
     .writes = {0, 1, 4},
     .samples = {{{f32({9, 7}), f32({9, 7}), f32({9, 7}), f32({5}, Fill::positive)}, sample_attributes},
                 {{bf16({40}), f32({40}), f32({40}), f32({4}, Fill::positive), f32({40})}, sample_attributes},
                 {{bf16({40}), f32({40}), f32({40}), f32({5}, Fill::positive)}, rounded_attributes},
                 {{f32({9, 7}), f32({64}), f32({64}), f32({4}, Fill::positive)},
                  {{"momentum", 0.9}, {"weight_decay", 0.01}, {"shards", 1}}}}},
};

}  // namespace

std::span<const OpDef> sgd_ops() { return table; }

}  // namespace lancet::ops
