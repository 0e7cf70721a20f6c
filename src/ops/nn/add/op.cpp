// y = a + b: the sum of two gradients of one tensor. add_to(a, b) -> y makes it in the memory of a; in the body of a
// repeat it adds what each round makes onto a, which is the sum before the first round.
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
    {.name = "add_to",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .aliases = {{0, 0}},
     .partition = {{{0, 0}, {0}},
                   {{1, 1}, {1}, SplitIn::space},
                   {{2, 2}, {2}, SplitIn::space},
                   {{partial, partial}, {partial}, SplitIn::space}},
     .samples = {{{f32({2, 4, 37}), f32({2, 4, 37})}, {}}, {{bf16({2, 4, 32}), bf16({2, 4, 32})}, {}}}},
};

}  // namespace

std::span<const OpDef> add_ops() { return table; }

}  // namespace lancet::ops
