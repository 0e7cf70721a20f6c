// What a rank takes of a tensor that all ranks of a group have, by its place in the group. No message is sent. The
// attribute axes names the group (ir/groups.h).
//   take_shard(x) {shards, axis, blocks}: this rank's shard of dimension `axis` of `blocks` blocks (shards.h)
//   one_summand(x): x on the group's first rank, zeros on the others, so that the sum over the group is x
#include "ops/describe.h"
#include "ops/shards.h"

namespace lancet::ops {
namespace {

Inferred infer_take(const OpInput& in) {
  const TensorType& x = in.operands[0];
  if (!is_activation(x.dtype) && x.dtype != DType::i32) return expected("a tensor of f32, bf16 or i32");
  const std::int64_t shards = in.attributes.integer("shards");
  const auto shape = ShardedDimension(in.attributes).shard(x.shape, shards);
  if (!in.attributes.has(ir::axes_attribute) || !shape)
    return expected("the attribute axes and a dimension whose blocks the shards divide");
  return Types{{x.dtype, *shape}};
}

Inferred infer_summand(const OpInput& in) {
  if (!is_activation(in.operands[0].dtype)) return expected("a tensor of f32 or bf16");
  if (!in.attributes.has(ir::axes_attribute)) return expected("the attribute axes, a group of ranks");
  return Types{in.operands[0]};
}

Work work_take(const OpInput& in) { return {0, 2 * bytes_of(in) / double(in.attributes.integer("shards"))}; }
Work work_summand(const OpInput& in) { return {0, 2 * bytes_of(in)}; }

const OpDef table[] = {
    {.name = "take_shard",
     .required = 1,
     .infer = infer_take,
     .work = work_take,
     .samples = {{{f32({3, 12, 5})}, {{"axes", "tensor"}, {"shards", 3}, {"axis", 1}, {"blocks", 2}}},
                 {{bf16({4, 3, 8})}, {{"axes", "data"}, {"shards", 2}, {"axis", 0}}}},
     .kind = Kind::share},
    {.name = "one_summand",
     .required = 1,
     .infer = infer_summand,
     .work = work_summand,
     .samples = {{{f32({3, 5, 7})}, {{"axes", "tensor"}}}, {{bf16({4, 9})}, {{"axes", "tensor"}}}},
     .kind = Kind::share},
};

}  // namespace

std::span<const OpDef> take_shard_ops() { return table; }

}  // namespace lancet::ops
