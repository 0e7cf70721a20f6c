// The router's z-loss (Zoph et al., ST-MoE, equation 5), which keeps logits small: the mean over tokens of the square
// of the logarithm of sum over experts of e^logit.
//   z_loss(logits f32[B,S,E]) {total_tokens, coefficient} -> f32[1]: this rank's share of the layer's; the sum over
//       ranks is the whole. total_tokens: tokens of the whole batch; coefficient: the weight of the loss in the
//       objective, which the result does not include
//   z_loss_dx(logits) {total_tokens, coefficient} -> f32[B,S,E]: coefficient * d loss / d logits
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check(const OpInput& in) {
  const TensorType& logits = in.operands[0];
  if (logits.dtype != DType::f32 || logits.shape.rank() != 3) return expected("logits f32[B,S,E]");
  if (in.attributes.integer("total_tokens") < 1) return expected("at least one token");
  return {};
}

Inferred infer(const OpInput& in) {
  LANCET_TRY(check(in));
  return Types{{DType::f32, {1}}};
}
Inferred infer_dx(const OpInput& in) {
  LANCET_TRY(check(in));
  return Types{in.operands[0]};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0, g.emit("z_loss_dx", forward.operands, forward.attributes, ir::Role::dx)[0]);
}

// Dominated by an exponential per logit.
Work work(const OpInput& in) { return {12 * double(in.operands[0].shape.elements()), bytes_of(in)}; }
Work work_dx(const OpInput& in) { return {20 * double(in.operands[0].shape.elements()), 2 * bytes_of(in)}; }

const Attributes sample_attributes{{"total_tokens", 24}, {"coefficient", 0.5}};

const OpDef table[] = {
    {.name = "z_loss",
     .required = 1,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     // Not in time: no policy may add up a loss in another order.
     .partition = {{{0}, {partial}, SplitIn::space}},
     .samples = {{{f32({2, 8, 4})}, sample_attributes}, {{f32({4, 3, 35})}, sample_attributes}},
     .is_loss = true},
    {.name = "z_loss_dx",
     .required = 1,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{0}, {0}}},
     .samples = {{{f32({2, 8, 4})}, sample_attributes}, {{f32({4, 3, 35})}, sample_attributes}}},
};

}  // namespace

std::span<const OpDef> z_loss_ops() { return table; }

}  // namespace lancet::ops
