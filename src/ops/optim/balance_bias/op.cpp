// balance_bias(&bias f32[E], counts f32[E], schedule) {rate}: the update of a bias that balances the load of the
// experts (Wang et al., Auxiliary-Loss-Free Load Balancing, algorithm 1), in place: bias_e += rate * sign(mean - c_e),
// where c_e counts how often the tokens of the step chose expert e, and the mean is over the experts. schedule as in
// adamw: if the gradient's factor is NaN, nothing is written. Its other numbers have no influence.
#include "lancet/ops/schedule_layout.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &bias = in.operands[0], &counts = in.operands[1], &numbers = in.operands[2];
  if (bias.dtype != DType::f32 || bias.shape.rank() != 1 || counts != bias) return expected("bias and counts f32[E]");
  if (!is_vector(numbers, schedule::plain) && !is_vector(numbers, schedule::clipped))
    return expected("a schedule f32[4] or, clipped, f32[5]");
  return Types{};
}

const OpDef table[] = {
    {.name = "balance_bias",
     .required = 3,
     .infer = infer,
     .writes = {0},
     .samples = {{{f32({4}), f32({4}, Fill::positive), f32({4}, Fill::positive)}, {{"rate", 0.25}}},
                 {{f32({40}), f32({40}, Fill::positive), f32({5}, Fill::positive)}, {{"rate", 0.001}}},
                 {{f32({3}), f32({3}, Fill::zero), f32({4}, Fill::positive)}, {{"rate", 0.5}}}}},
};

}  // namespace

std::span<const OpDef> balance_bias_ops() { return table; }

}  // namespace lancet::ops
