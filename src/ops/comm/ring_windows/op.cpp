// Windows of a tensor that all ranks of a group have, or are to have: its shards along a dimension, numbered from the
// rank's own, so that the same program makes a ring on all ranks (schedule/ring_shards). Window i on the rank at place
// p of n is shard (p + i) mod n. Windows are dense tensors of their own. Attributes: axes (the group, ir/groups.h;
// without it all ranks), shards (its ranks), axis, blocks (shards.h).
//   take_window(x) {part}: window `part` of x
//   join_windows(window 0, window 1, ...) -> the whole
#include "ops/describe.h"
#include "ops/shards.h"

namespace lancet::ops {
namespace {

bool is_copied(DType dtype) { return is_activation(dtype) || dtype == DType::i32; }

Inferred infer_take(const OpInput& in) {
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
Work work_join(const OpInput& in) { return {0, 2 * bytes_of(in)}; }

const OpDef table[] = {
    {.name = "take_window",
     .required = 1,
     .infer = infer_take,
     .work = work_take,
     .samples = {{{f32({3, 12, 5})}, {{"axes", "tensor"}, {"shards", 3}, {"axis", 1}, {"blocks", 2}, {"part", 2}}},
                 {{bf16({4, 3, 8})}, {{"axes", "data"}, {"shards", 2}, {"axis", 0}, {"part", 1}}}},
     .kind = Kind::part_helper},
    {.name = "join_windows",
     .required = 1,
     .most = any_number,
     .infer = infer_join,
     .work = work_join,
     .samples = {{{f32({3, 4, 5}), f32({3, 4, 5}), f32({3, 4, 5})},
                  {{"axes", "tensor"}, {"shards", 3}, {"axis", 1}, {"blocks", 2}}},
                 {{bf16({2, 3, 8}), bf16({2, 3, 8})}, {{"axes", "data"}, {"shards", 2}, {"axis", 0}}}},
     .kind = Kind::part_helper},
};

}  // namespace

std::span<const OpDef> ring_windows_ops() { return table; }

}  // namespace lancet::ops
