// Collectives over a group of ranks that carry activations and gradients of activations: what a change of a tensor's
// sharding costs (GShard, section 3.3.1). All have the attributes axes (the group, ir/groups.h; without it all ranks)
// and shards (its ranks).
//   all_gather(x) {axis, blocks}: x is this rank's shard of dimension `axis`, a dimension of `blocks` blocks (default
//       1; shards.h) -> the whole dimension
//   reduce_scatter(x) {axis, blocks}: the sum of x over the ranks -> this rank's shard of it
//   sum_shards(x): the sum of x over the ranks
//   swap_shards(x) {from, from_blocks, to, to_blocks}: x is this rank's shard of dimension `from`, and whole in
//       dimension `to` -> whole in `from`, this rank's shard of `to`
//   permute_shards(x [, y]) {shift, of, ...}: a step of a ring: x of the rank `shift` places on in the group [, and
//       y of the rank as many places before]. Attribute of: the collective that the ring takes the place of, whose
//       attributes it has, too
// Sums add up in f32 in the order of the ranks, ((x0 + x1) + x2) + ..., and are rounded once to the type of x; so they
// are the same bits on all ranks and by every transport. They need no gradient rules, since they enter a program after
// its backward pass.
#include <algorithm>

#include "lancet/ops/peer_parts.h"
#include "ops/describe.h"
#include "ops/shards.h"

namespace lancet::ops {
namespace {

std::int64_t shards_of(const OpInput& in) { return in.attributes.integer("shards"); }

// sums: over the ranks. What is only moved, such as tokens, may be integers.
Status check_group(const OpInput& in, bool sums) {
  const DType dtype = in.operands[0].dtype;
  if (!is_activation(dtype) && (sums || dtype != DType::i32))
    return expected(sums ? "a tensor of f32 or bf16" : "a tensor of f32, bf16 or i32");
  if (shards_of(in) < 1) return expected("the attribute shards, the ranks of a group");
  return {};
}

Inferred shaped(const OpInput& in, const std::optional<Shape>& shape) {
  if (!shape) return expected("a dimension whose blocks the shards divide");
  return Types{{in.operands[0].dtype, *shape}};
}

Inferred infer_gather(const OpInput& in) {
  LANCET_TRY(check_group(in, false));
  return shaped(in, ShardedDimension(in.attributes).whole(in.operands[0].shape, shards_of(in)));
}

Inferred infer_scatter(const OpInput& in) {
  LANCET_TRY(check_group(in, true));
  return shaped(in, ShardedDimension(in.attributes).shard(in.operands[0].shape, shards_of(in)));
}

Inferred infer_sum(const OpInput& in) {
  LANCET_TRY(check_group(in, true));
  return Types{in.operands[0]};
}

Inferred infer_swap(const OpInput& in) {
  LANCET_TRY(check_group(in, false));
  const ShardedDimension from(in.attributes, "from", "from_blocks"), to(in.attributes, "to", "to_blocks");
  if (from.axis == to.axis) return expected("two dimensions, from and to");
  const auto whole = from.whole(in.operands[0].shape, shards_of(in));
  return shaped(in, whole ? to.shard(*whole, shards_of(in)) : whole);
}

Inferred infer_permute(const OpInput& in) {
  for (const TensorType& type : in.operands)
    if (!is_activation(type.dtype) && type.dtype != DType::i32) return expected("tensors of f32, bf16 or i32");
  const std::int64_t shards = shards_of(in), shift = in.attributes.integer(ring_shift);
  if (shards < 1 || shift < 1 || shift >= std::max<std::int64_t>(shards, 2))
    return expected("the attributes shards, the ranks of a group, and shift, from 1 on and less than that");
  if (in.attributes.text(ring_of).empty()) return expected("the attribute of, a collective");
  return Types(in.operands.begin(), in.operands.end());
}

// Of the bytes of x, the ones that each of the other ranks gets, and how often in all.
Work work_of(const OpInput& in, double shares_sent, bool sums) {
  const TensorType& x = in.operands[0];
  const double shards = double(shards_of(in)), bytes = double(ir::bytes(x));
  return {.flops = sums ? double(x.shape.elements()) : 0,
          .bytes = 2 * bytes,
          .sent = bytes * shares_sent * (shards - 1) / shards};
}
Work work_gather(const OpInput& in) {  // the whole of x to each of the others
  Work work = work_of(in, double(shards_of(in)), false);
  work.bytes *= double(shards_of(in));
  return work;
}
Work work_scatter(const OpInput& in) { return work_of(in, 1, true); }
Work work_sum(const OpInput& in) { return work_of(in, 2, true); }
Work work_swap(const OpInput& in) { return work_of(in, 1, false); }
Work work_permute(const OpInput& in) {
  return {.bytes = 2 * bytes_of(in), .sent = shards_of(in) > 1 ? bytes_of(in) : 0};
}

// Samples run on one rank. The results on several are tested in collective_test.cpp.
std::vector<Sample> samples(const Attributes& attributes) {
  return {{{f32({2, 6, 5})}, attributes}, {{bf16({4, 3, 7})}, attributes}};
}

// Of a dimension that the collective does not move (ops::moves()).
const PartitionRow of_outermost{{0}, {0}, SplitIn::time};

const OpDef table[] = {
    {.name = "all_gather",
     .required = 1,
     .infer = infer_gather,
     .work = work_gather,
     .partition = {of_outermost},
     .samples = samples({{"axes", "data"}, {"shards", 1}, {"axis", 1}, {"blocks", 3}}),
     .stream = ir::Stream::expert,
     .kind = Kind::collective,
     .ring = Ring::gather},
    {.name = "reduce_scatter",
     .required = 1,
     .infer = infer_scatter,
     .work = work_scatter,
     .partition = {of_outermost},
     .samples = samples({{"axes", "data"}, {"shards", 1}, {"axis", 1}, {"blocks", 3}}),
     .stream = ir::Stream::expert,
     .kind = Kind::collective,
     .ring = Ring::scatter},
    {.name = "sum_shards",
     .required = 1,
     .infer = infer_sum,
     .work = work_sum,
     .partition = {of_outermost},
     .samples = samples({{"axes", "tensor"}, {"shards", 1}}),
     .stream = ir::Stream::expert,
     .kind = Kind::collective},
    {.name = "swap_shards",
     .required = 1,
     .infer = infer_swap,
     .work = work_swap,
     .partition = {of_outermost},
     .samples = samples({{"axes", "tensor"}, {"shards", 1}, {"from", 2}, {"to", 1}, {"to_blocks", 3}}),
     .stream = ir::Stream::expert,
     .kind = Kind::collective},
    {.name = "permute_shards",
     .required = 1,
     .most = 2,
     .infer = infer_permute,
     .work = work_permute,
     .samples = {{{f32({2, 6, 5})}, {{"axes", "tensor"}, {"shards", 1}, {"of", "all_gather"}, {"shift", 1}}},
                 {{bf16({4, 3, 7}), bf16({4, 3, 7})},
                  {{"axes", "tensor"}, {"shards", 1}, {"of", "all_gather"}, {"shift", 1}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::collective},
};

}  // namespace

std::span<const OpDef> collective_ops() { return table; }

}  // namespace lancet::ops
