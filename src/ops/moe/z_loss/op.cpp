// The router's z-loss (Zoph et al., ST-MoE, equation 5), which keeps logits small: the mean over tokens of the square
// of the logarithm of sum over experts of e^logit.
//   z_loss(logits f32[B,S,E]) {total_tokens, coefficient} -> f32[1]: this rank's share of the layer's; the sum over
//       ranks is the whole. total_tokens: tokens of the whole batch; coefficient: the weight of the loss in the
//       objective, which the result does not include
//   z_loss_dx(logits) {total_tokens, coefficient} -> f32[B,S,E]: coefficient * d loss / d logits
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check(const OpInput& in, Types&) {
  if (in.attributes.integer("total_tokens") < 1) return expected("at least one token");
  return {};
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
     // Not in time: no policy may add up a loss in another order.
     .forms = {{"logits:f32[b,s,e] -> loss:f32[1]", "b space"}},
     .check = check,
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=8 e=4", sample_attributes), of("b=4 s=3 e=35", sample_attributes)},
     .kind = Kind::loss},
    {.name = "z_loss_dx",
     .forms = {{"logits:f32[b,s,e] -> dlogits:f32[b,s,e]", "b"}},
     .check = check,
     .work = work_dx,
     .samples = {of("b=2 s=8 e=4", sample_attributes), of("b=4 s=3 e=35", sample_attributes)}},
};

}  // namespace

std::span<const OpDef> z_loss_ops() { return table; }

}  // namespace lancet::ops
