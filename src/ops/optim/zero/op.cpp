// zero(&t) sets a tensor to zero: after the update, a gradient that is summed over several micro batches.
// zeros(t) makes a tensor of t's shape: of f32 with the attribute f32=1, else of t's type. The body of a repeat adds
// gradients onto it (passes/autodiff). Zeros are also a summand on every rank.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  return in.operands[0].dtype == DType::f32 ? Inferred(Types{}) : Inferred(expected("an f32 tensor"));
}

Work work(const OpInput& in) { return {0, bytes_of(in)}; }

Inferred infer_zeros(const OpInput& in) {
  if (!is_activation(in.operands[0].dtype)) return expected("a tensor of f32 or bf16");
  const bool as_f32 = in.attributes.integer("f32", 0) != 0;
  return Types{{as_f32 ? DType::f32 : in.operands[0].dtype, in.operands[0].shape}};
}

Work work_zeros(const OpInput& in) {
  const TensorType& like = in.operands[0];
  return {0, double(like.shape.elements()) * (in.attributes.integer("f32", 0) ? 4 : size_of(like.dtype))};
}

const OpDef table[] = {
    {.name = "zero", .required = 1, .infer = infer, .work = work, .writes = {0}, .samples = {{{f32({9, 7})}, {}}}},
    {.name = "zeros",
     .required = 1,
     .infer = infer_zeros,
     .work = work_zeros,
     .partition = {{{0}, {0}, SplitIn::space},
                   {{1}, {1}, SplitIn::space},
                   {{2}, {2}, SplitIn::space},
                   {{none}, {partial}, SplitIn::space}},
     .samples = {{{f32({2, 4, 7})}, {}}, {{bf16({2, 4, 32})}, {}}, {{bf16({2, 4, 8})}, {{"f32", 1}}}}},
};

}  // namespace

std::span<const OpDef> zero_ops() { return table; }

}  // namespace lancet::ops
