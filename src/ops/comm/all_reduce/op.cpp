// all_reduce(x, ...) [{message, shards}] -> x, ...: sums f32 tensors over all ranks, or over the group that the
// attribute axes names (ir/groups.h), in place: the gradients of a bucket, or the step's logged numbers. message=bf16:
// the values of the ranks are rounded to bf16, summed in f32 and the sums rounded to bf16, so that messages are half as
// long; shards is then the number of ranks, among which the sums are divided as flat shards (ops/comm/flat_shards).
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  for (const TensorType& type : in.operands)
    if (type.dtype != DType::f32) return expected("f32 tensors");
  if (in.attributes.has("message") && (in.attributes.text("message") != "bf16" || in.attributes.integer("shards") < 1))
    return expected("message=bf16 with the number of shards");
  return Types(in.operands.begin(), in.operands.end());
}

Work work(const OpInput& in) { return {bytes_of(in) / 4, bytes_of(in)}; }

const OpDef table[] = {
    {.name = "all_reduce",
     .required = 1,
     .most = any_number,
     .infer = infer,
     .work = work,
     .samples = {{{f32({3, 5}), f32({7})}, {}}},
     .stream = ir::Stream::reduce,
     .in_place = true},
};

}  // namespace

std::span<const OpDef> all_reduce_ops() { return table; }

}  // namespace lancet::ops
