// Ops for a forward pass over the next few positions of a sequence (decoding), in addition to the ops that work row by
// row. The keys and values of earlier positions are kept from call to call (the KV cache).
//   cursor   i32[2]: the position of the first row, and the index of the last valid row; the rows after it are filler
//   keys, values [B,H,P,hd]: the cache of all positions, by head of keys, so that a head reads one contiguous range of
//     memory; each is read by a `group` of heads of queries, as in attention
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Work work_embedding(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements()) * double(in.operands[1].shape[1]);
  return {elements, 3 * elements * size_of(in.operands[1].dtype)};
}

// The work with a full cache, where each row attends to every position.
Work work_attention(const OpInput& in) {
  const double positions = double(in.operands[1].shape[2]), group = double(in.attributes.integer("group", 1));
  return {4 * double(in.operands[0].shape.elements()) * group / (group + 2) * positions, bytes_of(in)};
}

Work work_row(const OpInput& in) {
  const Shape& x = in.operands[0].shape;
  return {0, 2.0 * double(x[0] * x[2]) * size_of(in.operands[0].dtype)};
}

const OpDef table[] = {
    {.name = "embedding_at",
     .forms = {{"tokens:i32[b,s] wte[v,d] wpe[p,d] cursor:i32[2] -> x[b,s,d]", "v placed wpe=once"}},
     .work = work_embedding,
     .samples = {of("b=2 s=5 v=11 p=12 d=24", {{"vocabulary", 11}}), of("b=2 s=3 v=12 p=12 d=20", {{"vocabulary", 12}}),
                 of("b=1 s=1 v=5 p=5 d=17 bf16", {{"vocabulary", 5}})}},
    {.name = "attention_decode",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*c] &keys[b,@heads,p,c] &values[b,@heads,p,c] cursor:i32[2] -> "
                "out[b,s,@heads*@group?*c]",
                "@heads space"}},
     .work = work_attention,
     .samples = {of("b=1 s=1 @heads=2 p=9 c=8", {{"vocabulary", 1}}),
                 of("b=2 s=5 @heads=3 p=11 c=7", {{"vocabulary", 5}}),
                 of("b=1 s=64 @heads=2 p=130 c=64", {{"vocabulary", 64}}),
                 of("b=1 s=4 @heads=2 p=40 c=80 bf16", {{"vocabulary", 4}}),
                 of("b=2 s=1 @heads=1 p=6 c=16 bf16", {{"vocabulary", 1}}),
                 of("b=2 s=3 @heads=2 @group=2 p=9 c=8", {{"vocabulary", 3}}),
                 of("b=1 s=1 @heads=2 @group=4 p=300 c=80 bf16", {{"vocabulary", 1}})}},
    {.name = "take_row",
     .forms = {{"x[b,s,d] cursor:i32[2] -> row[b,1,d]"}},
     .work = work_row,
     .samples = {of("b=2 s=5 d=24", {{"vocabulary", 5}}), of("b=1 s=3 d=17 bf16", {{"vocabulary", 3}})}},
};

}  // namespace

std::span<const OpDef> decode_ops() { return table; }

}  // namespace lancet::ops
