// zero(&t) sets a tensor to zero: after the update, a gradient that is summed over several micro batches.
// zeros(t) makes a tensor of t's shape: of f32 with the attribute f32=1, else of t's type. The body of a repeat adds
// gradients onto it (passes/autodiff). Zeros are also a summand on every rank.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Work work(const OpInput& in) { return {0, bytes_of(in)}; }

Status check_zeros(const OpInput& in, Types& results) {
  if (in.attributes.integer("f32", 0) != 0) results[0].dtype = DType::f32;
  return {};
}

Work work_zeros(const OpInput& in) {
  const TensorType& like = in.operands[0];
  return {0, double(like.shape.elements()) * (in.attributes.integer("f32", 0) ? 4 : size_of(like.dtype))};
}

const OpDef table[] = {
    {.name = "zero", .forms = {{"&t:f32[...] ->"}}, .work = work, .samples = {of("...=9,7")}},
    {.name = "zeros",
     .forms = {{"t[...] -> zeros[...]", "0, 1 space, 2 space, - space"}},
     .check = check_zeros,
     .work = work_zeros,
     .samples = {of("...=2,4,7"), of("...=2,4,32 bf16"), of("...=2,4,8 bf16", {{"f32", 1}})}},
};

}  // namespace

std::span<const OpDef> zero_ops() { return table; }

}  // namespace lancet::ops
