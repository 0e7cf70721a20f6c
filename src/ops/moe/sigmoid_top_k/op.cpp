// sigmoid_top_k(logits [, bias]) {k [, normalize] [, expert_groups, top_groups] [, scale]} chooses k experts of a token
// by s + bias, where s_e = sigmoid(logit_e) and bias f32[E] balances the load of the experts (DeepSeek-V3, section
// 2.1.2; the bias: Wang et al., Auxiliary-Loss-Free Load Balancing). The experts form `expert_groups` groups of
// neighbours (1 without the attribute). A group's score is the sum of its two largest s + bias, or its only one, and a
// token chooses experts of the `top_groups` groups with the largest scores alone. Results, of T = B*S tokens:
//   expert i32[T,K]: the choices, by falling s + bias, equals by rising expert; of groups with equal scores the lower
//       one is taken. NaN as in top_k
//   weight f32[T,K]: s of the choices, without bias; with normalize=1 divided by their sum + 1e-20; times scale (1)
//   scores f32[B,S,E]: s divided by the sum over all experts + 1e-20, for the auxiliary loss. They sum up to 1 but for
//       tokens whose sum of s is not far above 1e-20: these count less, and with all s 0 not at all
// The bias has no gradient of a loss. What stands in its place is the number of choices of each expert
// (ops/moe/choice_counts), by which the update moves it (ops/optim/update).
#include "math.h"
#include "ops/moe/top_k/choice.h"

namespace lancet::ops {
namespace {

Status check_groups(const OpInput& in, Types& results) {
  LANCET_TRY(check_choice(in, results));
  const std::int64_t experts = in.operands[0].shape[2], groups = in.attributes.integer("expert_groups", 1);
  const std::int64_t open = in.attributes.integer("top_groups", groups);
  if (groups < 1 || groups > routing::most_expert_groups || experts % groups != 0)
    return expected("expert_groups that divide the experts, at most 64");
  if (open < 1 || open > groups || in.attributes.integer("k") > open * (experts / groups))
    return expected("top_groups that have k experts, at most all groups");
  return {};
}

// sigmoid_top_k_dx(dweight, expert, logits [, dscores]) {[normalize] [, scale] [, load_tokens]}: see check_choice_dx.
void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  Attributes attributes;
  if (forward.attributes.has("scale")) attributes.set("scale", forward.attributes.real("scale"));
  emit_choice_dx(g, "sigmoid_top_k_dx", forward.operands[0], attributes);
  if (forward.operands.size() < 2) return;
  const std::int64_t experts = g.type(forward.operands[0]).shape.back();
  emit_dw(g, "choice_counts", {forward.results[0]}, {{"experts", experts}}, 1);
}

// An exponential and a division per expert; then each choice looks at all experts.
Work work(const OpInput& in) {
  const Shape& logits = in.operands[0].shape;
  const double elements = double(logits.elements()), choices = double(in.attributes.integer("k"));
  return {(13 + choices) * elements, 8 * elements + 8 * choices * double(logits.rows())};
}

Attributes scaled(Attributes attributes) {
  attributes.set("scale", 2.5);
  return attributes;
}

const OpDef table[] = {
    {.name = "sigmoid_top_k",
     .forms = {{"logits:f32[b,s,e] bias?:f32[e] -> expert:i32[b*s,@k] weight:f32[b*s,@k] scores:f32[b,s,e]", "b"}},
     .check = check_groups,
     .gradient = gradient,
     .work = work,
     .counted = {1},
     .samples = {of("b=2 s=8 e=4 @k=1"), of("b=4 s=3 e=5 @k=2 +bias"),
                 of("b=2 s=8 e=4 @k=2", scaled({{"normalize", 1}})),
                 of("b=4 s=3 e=12 @k=3 +bias", scaled({{"normalize", 1}, {"expert_groups", 4}, {"top_groups", 2}})),
                 of("b=4 s=2 e=6 @k=3", {{"expert_groups", 6}, {"top_groups", 4}})},
     .kind = Kind::choice},
    {.name = "sigmoid_top_k_dx",
     .forms = {{"dweight:f32[b*s,k] expert:i32[b*s,k] logits:f32[b,s,e] dscores?:f32[l*e] -> dlogits:f32[b,s,e]",
                "b, b+l space"}},
     .check = check_choice_dx,
     .work = work_of_choice_dx,
     .samples = {of("b=2 s=8 e=4 k=1 l=1 +dscores", sample_of_choice_dx()),
                 of("b=4 s=4 e=4 k=2 l=4 +dscores", scaled(sample_of_choice_dx(4))),
                 of("b=4 s=4 e=4 k=3 l=4 +dscores", scaled(sample_of_choice_dx(4, true))),
                 of("b=4 s=4 e=4 k=2", sample_of_choice_dx(0, true))}},
};

}  // namespace

std::span<const OpDef> sigmoid_top_k_ops() { return table; }

}  // namespace lancet::ops
