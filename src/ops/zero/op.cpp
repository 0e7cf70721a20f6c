// zero(&t) sets a tensor to zero: after the update, a gradient that is summed over several micro batches.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  return in.operands[0].dtype == DType::f32 ? Inferred(Types{}) : Inferred(expected("an f32 tensor"));
}

Work work(const OpInput& in) { return {0, bytes_of(in)}; }

const OpDef table[] = {
    {.name = "zero", .required = 1, .infer = infer, .work = work, .writes = {0}, .samples = {{{f32({9, 7})}, {}}}},
};

}  // namespace

std::span<const OpDef> zero_ops() { return table; }

}  // namespace lancet::ops
