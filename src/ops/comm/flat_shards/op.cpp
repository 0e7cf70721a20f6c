// The two collectives of ZeRO-1 (Rajbhandari et al., SC 2020) over flat shards (base/flat_shard.h):
//   reduce_scatter_flat(g, ...) {shards [, begin, length] [, message]} -> f32[s], ...: of each g f32, this rank's shard
//     of the sum over the group's `shards` ranks, in the order of the ranks; padding is 0. begin, length: only elements
//     [begin, begin + length) of each shard. message=bf16: the ranks' values are rounded to bf16 before they are summed
//     in f32, which halves the messages.
//   all_gather_flat(p, ...) {shards} -> p, ...: in place. Each rank has the elements of its own shard of each p, and
//     gets those of the other ranks. All p have one type.
// Both send one message to each rank, of all tensors together, or several in rounds if these are large.
#include "lancet/base/flat_shard.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_sums(const OpInput& in) {
  const std::int64_t shards = in.attributes.integer("shards"), begin = in.attributes.integer("begin", 0);
  if (shards < 1) return expected("at least one shard");
  if (in.attributes.has("message") && in.attributes.text("message") != "bf16") return expected("message=bf16");
  Types results;
  for (const TensorType& type : in.operands) {
    if (type.dtype != DType::f32) return expected("f32 tensors");
    const std::int64_t shard = flat_shard_elements(type.shape.elements(), shards);
    const std::int64_t length = in.attributes.integer("length", shard);
    if (begin < 0 || length < 1 || begin > shard - length || begin % flat_shard_step + length % flat_shard_step != 0)
      return expected(fmt::format("begin and length within a shard, multiples of {}", flat_shard_step));
    results.push_back({DType::f32, {length}});
  }
  return results;
}

Inferred infer_gather(const OpInput& in) {
  if (in.attributes.integer("shards") < 1) return expected("at least one shard");
  for (const TensorType& type : in.operands)
    if (!is_activation(type.dtype) || type.dtype != in.operands[0].dtype) return expected("tensors of f32, or of bf16");
  return Types(in.operands.begin(), in.operands.end());
}

Work work(const OpInput& in) { return {bytes_of(in) / 4, bytes_of(in)}; }

const OpDef table[] = {
    {.name = "reduce_scatter_flat",
     .required = 1,
     .most = any_number,
     .infer = infer_sums,
     .work = work,
     .samples = {{{f32({3, 5}), f32({7}), f32({48})}, {{"shards", 1}}},
                 {{f32({3, 5}), f32({40})}, {{"shards", 1}, {"message", "bf16"}}},
                 {{f32({9, 11})}, {{"shards", 1}, {"begin", 16}, {"length", 64}}}},
     .stream = ir::Stream::reduce,
     .kind = Kind::flat_reduce_scatter},
    {.name = "all_gather_flat",
     .required = 1,
     .most = any_number,
     .infer = infer_gather,
     .work = work,
     .samples = {{{f32({3, 5}), f32({40})}, {{"shards", 1}}}, {{bf16({3, 5}), bf16({40})}, {{"shards", 1}}}},
     .stream = ir::Stream::reduce,
     .in_place = true,
     .kind = Kind::flat_all_gather},
};

}  // namespace

std::span<const OpDef> flat_shards_ops() { return table; }

}  // namespace lancet::ops
