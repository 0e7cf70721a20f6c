// Causal multi-head self-attention on packed q, k, v (GPT-2's c_attn output); scores scaled by 1/sqrt(head size).
//   attention(qkv [B,S,(G+1+1)*H*hd]) {heads, group} -> out [B,S,G*H*hd], lse f32[B,G*H,S]
//   attention_dx(dout, qkv, out, lse) -> dqkv
// Each of H `heads` of keys and values is read by a `group` of G heads of queries, 1 without the attribute: head h of
// queries reads the keys of head h / G.
// Attribute deterministic=0: the gradient of q may be summed in another order in each run, where that is faster.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0, g.emit("attention_dx", {g.result_gradient(0), forward.operands[0], forward.results[0], forward.results[1]},
                  forward.attributes, ir::Role::dx)[0]);
}

// The heads of queries and the blocks of qkv, in units of the keys' heads.
double queries(const OpInput& in) { return double(in.attributes.integer("group", 1)); }
double blocks(const OpInput& in) { return queries(in) + 2; }
// The flops of one product over the lower triangle, q k^T or p v: 2 * S * (S+1) / 2 * head size per head of queries.
double triangle(const OpInput& in, const Shape& qkv) {
  return double(qkv[0]) * double(qkv[1]) * double(qkv[1] + 1) * double(qkv[2]) * queries(in) / blocks(in);
}
Work work(const OpInput& in) {
  return {2 * triangle(in, in.operands[0].shape), bytes_of(in) * (blocks(in) + queries(in)) / blocks(in)};
}
Work work_dx(const OpInput& in) {  // five products: scores again, dv, dp, dq, dk
  const double read = blocks(in) + 2 * queries(in);
  return {5 * triangle(in, in.operands[1].shape), bytes_of(in) * (read + blocks(in)) / read};
}

const OpDef table[] = {
    {.name = "attention",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*c] -> out[b,s,@heads*@group?*c] lse:f32[b,@heads*@group?,s]",
                "b, @heads space"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=9 @heads=2 c=8"), of("b=2 s=1 @heads=1 c=5"), of("b=2 s=16 @heads=2 c=16 bf16"),
                 of("b=2 s=7 @heads=2 @group=2 c=5"), of("b=1 s=6 @heads=1 @group=4 c=80"),
                 of("b=2 s=9 @heads=4 @group=2 c=16 bf16")},
     .kind = Kind::attention,
     .again = Again{}},
    {.name = "attention_dx",
     .forms = {{"dout[b,s,@heads*@group?*c] qkv[b,s,(@group?+1+1)*@heads*c] out[b,s,@heads*@group?*c] "
                "lse:f32[b,@heads*@group?,s] -> dqkv[b,s,(@group?+1+1)*@heads*c]",
                "b, @heads space"}},
     .work = work_dx,
     .samples = {of("b=2 s=9 @heads=2 c=8 lse=positive"), of("b=2 s=7 @heads=2 @group=2 c=5 lse=positive"),
                 of("b=2 s=9 @heads=4 @group=2 c=16 bf16 lse=positive")},
     .kind = Kind::attention},
};

}  // namespace

std::span<const OpDef> attention_ops() { return table; }

}  // namespace lancet::ops
