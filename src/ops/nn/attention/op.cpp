// Causal multi-head self-attention on packed q, k, v (GPT-2's c_attn output); scores scaled by 1/sqrt(head size).
//   attention(qkv [B,S,3*H*hd]) -> out [B,S,H*hd], lse f32[B,H,S]
//   attention_dx(dout, qkv, out, lse) -> dqkv
// Attribute deterministic=0: the gradient of q may be summed in another order in each run, where that is faster.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType& qkv = in.operands[0];
  const std::int64_t heads = in.attributes.integer("heads");
  if (!is_activation(qkv.dtype) || qkv.shape.rank() != 3 || heads < 1 || qkv.shape[2] % (3 * heads))
    return expected("qkv [B,S,3*heads*head size] of f32 or bf16");
  return Types{{qkv.dtype, with_back(qkv.shape, qkv.shape[2] / 3)}, {DType::f32, {qkv.shape[0], heads, qkv.shape[1]}}};
}

Inferred infer_dx(const OpInput& in) {
  LANCET_ASSIGN(const Types forward, infer({in.operands.subspan(1, 1), in.attributes}));
  if (in.operands[0] != forward[0] || in.operands[2] != forward[0])
    return expected("dout and out as attention makes them");
  if (in.operands[3] != forward[1]) return expected("lse f32[B,heads,S]");
  return Types{in.operands[1]};
}

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
     .required = 1,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0}, {0, 0}}, {{packed}, {last, 1}, SplitIn::space, {"heads"}}},
     .samples = {{{f32({2, 9, 48})}, {{"heads", 2}}},
                 {{f32({2, 1, 15})}, {{"heads", 1}}},
                 {{bf16({2, 16, 96})}, {{"heads", 2}}}},
     .kind = Kind::attention,
     .again = Again{}},
    {.name = "attention_dx",
     .required = 4,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{0, 0, 0, 0}, {0}}, {{last, packed, last, 1}, {packed}, SplitIn::space, {"heads"}}},
     .samples = {{{f32({2, 9, 16}), f32({2, 9, 48}), f32({2, 9, 16}), f32({2, 2, 9}, Fill::positive)}, {{"heads", 2}}}},
     .kind = Kind::attention},
};

}  // namespace

std::span<const OpDef> attention_ops() { return table; }

}  // namespace lancet::ops
