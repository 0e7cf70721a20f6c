// Causal multi-head self-attention on packed q, k, v (GPT-2's c_attn output); scores scaled by 1/sqrt(head size).
//   attention(qkv [B,S,3*H*hd]) -> out [B,S,H*hd], lse f32[B,H,S]
//   attention_dx(dout, qkv, out, lse) -> dqkv
// Attribute deterministic=0: the gradient of q may be summed in another order in each run, where that is faster.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0, g.emit("attention_dx", {g.result_gradient(0), forward.operands[0], forward.results[0], forward.results[1]},
                  forward.attributes, ir::Role::dx)[0]);
}

// The flops of one product over the lower triangle, q k^T or p v: 2 * S * (S+1) / 2 * head size per head.
double triangle(const Shape& qkv) { return double(qkv[0]) * double(qkv[1]) * double(qkv[1] + 1) * double(qkv[2]) / 3; }
Work work(const OpInput& in) { return {2 * triangle(in.operands[0].shape), bytes_of(in) * 4 / 3}; }
Work work_dx(const OpInput& in) {  // five products: scores again, dv, dp, dq, dk
  return {5 * triangle(in.operands[1].shape), bytes_of(in) * 8 / 5};
}

const OpDef table[] = {
    {.name = "attention",
     .forms = {{"qkv[b,s,3*@heads*c] -> out[b,s,@heads*c] lse:f32[b,@heads,s]", "b, @heads space"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=9 @heads=2 c=8"), of("b=2 s=1 @heads=1 c=5"), of("b=2 s=16 @heads=2 c=16 bf16")},
     .kind = Kind::attention,
     .again = Again{}},
    {.name = "attention_dx",
     .forms = {{"dout[b,s,@heads*c] qkv[b,s,3*@heads*c] out[b,s,@heads*c] lse:f32[b,@heads,s] -> dqkv[b,s,3*@heads*c]",
                "b, @heads space"}},
     .work = work_dx,
     .samples = {of("b=2 s=9 @heads=2 c=8 lse=positive")},
     .kind = Kind::attention},
};

}  // namespace

std::span<const OpDef> attention_ops() { return table; }

}  // namespace lancet::ops
