// y = a + b: the sum of two gradients of one tensor.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  if (!is_activation(in.operands[0].dtype) || in.operands[0] != in.operands[1])
    return expected("two tensors of one type");
  return Types{in.operands[0]};
}

void gradient(GradientContext& g) {
  for (int operand : {0, 1})
    if (g.needs_gradient(operand)) g.add(operand, g.result_gradient(0));
}

Work work(const OpInput& in) { return work_per_element(in, 1, 3); }

const OpDef table[] = {
    {.name = "add",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, 0}, {0}}, {{1, 1}, {1}}, {{2, 2}, {2}}},
     .samples = {{{f32({2, 4, 37}), f32({2, 4, 37})}, {}}, {{bf16({2, 4, 32}), bf16({2, 4, 32})}, {}}}},
};

}  // namespace

std::span<const OpDef> add_ops() { return table; }

}  // namespace lancet::ops
