// AdamW (Loshchilov and Hutter), in place. adamw(&w, &m, &v, gradient, schedule [, &master])
//   schedule: ops/schedule_layout.h. If the gradient's factor is NaN, because the norm is not finite, nothing is
//     written, so that the fault can be reproduced with these weights
//   master f32 of w's shape, for bf16 w: the exact weights, of which w is the rounded copy
//   shards: the update of a flat shard (ops/update.h)
#include "ops/update.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) { return infer_update(in, 2); }

Work work(const OpInput& in) {
  const double elements = double(in.operands[1].shape.elements());
  const bool master = in.operands.size() > 5, stochastic = in.attributes.has("rounding_seed");
  return {14 * elements, elements * (master ? 30 : stochastic ? 24 : 28)};
}

const Attributes sample_attributes{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
const Attributes rounded_attributes{
    {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"rounding_seed", 7}};

const OpDef table[] = {
    {.name = "adamw",
     .required = 5,
     .most = 6,
     .infer = infer,
     .work = work,
     .writes = {0, 1, 2, 5},
     .samples = {{{f32({9, 7}), f32({9, 7}), f32({9, 7}, Fill::positive), f32({9, 7}), f32({5}, Fill::positive)},
                  sample_attributes},
                 {{bf16({40}), f32({40}), f32({40}, Fill::positive), f32({40}), f32({4}, Fill::positive), f32({40})},
                  sample_attributes},
                 {{bf16({40}), f32({40}), f32({40}, Fill::positive), f32({40}), f32({5}, Fill::positive)},
                  rounded_attributes},
                 {{bf16({40}), f32({48}), f32({48}, Fill::positive), f32({48}), f32({4}, Fill::positive), f32({48})},
                  {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"shards", 1}}}}},
};

}  // namespace

std::span<const OpDef> adamw_ops() { return table; }

}  // namespace lancet::ops
