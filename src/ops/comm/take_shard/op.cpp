// What a rank takes of a tensor that all ranks of a group have, by its place in the group. No message is sent. The
// attribute axes names the group (ir/groups.h).
//   take_shard(x) {shards, axis, blocks}: this rank's shard of dimension `axis` of `blocks` blocks (shards.h)
//   one_summand(x): x on the group's first rank, zeros on the others, so that the sum over the group is x
// Windows are the shards numbered from the rank's own, so that the same program makes a ring on all ranks
// (schedule/ring_rewrite.cpp): window i on the rank at place p of n is shard (p + i) mod n, a dense tensor of its own.
//   take_window(x) {shards, axis, blocks, part}: window `part` of x
//   join_windows(window 0, window 1, ...) {shards, axis, blocks} -> the whole
#include "ops/describe.h"
#include "ops/shards.h"

namespace lancet::ops {
namespace {

bool is_copied(DType dtype) { return is_activation(dtype) || dtype == DType::i32; }

Inferred infer_take(const OpInput& in) {
  const TensorType& x = in.operands[0];
  if (!is_copied(x.dtype)) return expected("a tensor of f32, bf16 or i32");
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

Inferred infer_window(const OpInput& in) {
  const TensorType& x = in.operands[0];
  const std::int64_t shards = in.attributes.integer("shards"), part = in.attributes.integer("part");
  const auto shape = ShardedDimension(in.attributes).shard(x.shape, shards);
  if (!is_copied(x.dtype)) return expected("a tensor of f32, bf16 or i32");
  if (!shape || part < 0 || part >= shards)
    return expected("a dimension whose blocks the shards divide, and one of the windows");
  return Types{{x.dtype, *shape}};
}

Inferred infer_join(const OpInput& in) {
  const TensorType& window = in.operands[0];
  const std::int64_t shards = in.attributes.integer("shards");
  if (!is_copied(window.dtype)) return expected("tensors of f32, bf16 or i32");
  for (const TensorType& other : in.operands)
    if (other != window) return expected("windows of one type");
  const auto shape = ShardedDimension(in.attributes).whole(window.shape, shards);
  if (!shape || shards != std::int64_t(in.operands.size()))
    return expected("as many windows as shards, of a dimension that the blocks divide");
  return Types{{window.dtype, *shape}};
}

Work work_take(const OpInput& in) { return {0, 2 * bytes_of(in) / double(in.attributes.integer("shards"))}; }
Work work_whole(const OpInput& in) { return {0, 2 * bytes_of(in)}; }

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
     .work = work_whole,
     .samples = {{{f32({3, 5, 7})}, {{"axes", "tensor"}}}, {{bf16({4, 9})}, {{"axes", "tensor"}}}},
     .kind = Kind::share},
    {.name = "take_window",
     .required = 1,
     .infer = infer_window,
     .work = work_take,
     .samples = {{{f32({3, 12, 5})}, {{"axes", "tensor"}, {"shards", 3}, {"axis", 1}, {"blocks", 2}, {"part", 2}}},
                 {{bf16({4, 3, 8})}, {{"axes", "data"}, {"shards", 2}, {"axis", 0}, {"part", 1}}}},
     .kind = Kind::part_helper},
    {.name = "join_windows",
     .required = 1,
     .most = any_number,
     .infer = infer_join,
     .work = work_whole,
     .samples = {{{f32({3, 4, 5}), f32({3, 4, 5}), f32({3, 4, 5})},
                  {{"axes", "tensor"}, {"shards", 3}, {"axis", 1}, {"blocks", 2}}},
                 {{bf16({2, 3, 8}), bf16({2, 3, 8})}, {{"axes", "data"}, {"shards", 2}, {"axis", 0}}}},
     .kind = Kind::part_helper},
};

}  // namespace

std::span<const OpDef> take_shard_ops() { return table; }

}  // namespace lancet::ops
