// Choices of a token's experts by the softmax of its logits. They look at no other token. Results, of T = B*S tokens
// with K choices each:
//   expert i32[T,K]: the choices
//   weight f32[T,K]: the scores of the choices; with normalize=1 divided by their sum, which is the softmax over the
//       chosen logits alone
//   scores f32[B,S,E]: the softmax over all logits
// top_k(logits) {k [, normalize]} chooses the k experts with a token's largest logits (Shazeer et al.; k = 1: Fedus et
//   al.), by falling logit, equals by rising expert. A NaN is chosen after all numbers, but at expert 0 before them.
// every_expert(logits) gives each token all experts in their order, K = E, for gates by which experts choose tokens
//   (slots_by_weight). It costs no search.
// The slots of the choices are another op's decision (ops/moe/slots), which may depend on other tokens.
#include "choice.h"

namespace lancet::ops {
namespace {

// top_k_dx(dweight, expert, scores [, dscores]) {[normalize] [, load_tokens]}: see check_choice_dx.
void gradient(GradientContext& g) { emit_choice_dx(g, "top_k_dx", g.instruction().results[2], {}); }

// An exponential per expert; then each choice looks at all experts.
Work work(const OpInput& in) {
  const Shape& logits = in.operands[0].shape;
  const double elements = double(logits.elements()), choices = double(in.attributes.integer("k"));
  return {(11 + choices) * elements, 8 * elements + 8 * choices * double(logits.rows())};
}
Work work_every(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  return {11 * elements, 16 * elements};
}

const OpDef table[] = {
    {.name = "top_k",
     .forms = {{"logits:f32[b,s,e] -> expert:i32[b*s,@k] weight:f32[b*s,@k] scores:f32[b,s,e]", "b"}},
     .check = check_choice,
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=8 e=4 @k=1"), of("b=4 s=3 e=5 @k=1"), of("b=2 s=8 e=4 @k=2"),
                 of("b=4 s=3 e=5 @k=3", {{"normalize", 1}}), of("b=2 s=1 e=3 @k=3", {{"normalize", 1}})},
     .kind = Kind::choice},
    {.name = "every_expert",
     .forms = {{"logits:f32[b,s,e] -> expert:i32[b*s,e] weight:f32[b*s,e] scores:f32[b,s,e]", "b"}},
     .check = check_choice,
     .gradient = gradient,
     .work = work_every,
     .samples = {of("b=2 s=8 e=4"), of("b=4 s=3 e=5")},
     .kind = Kind::choice},
    {.name = "top_k_dx",
     .forms = {{"dweight:f32[b*s,k] expert:i32[b*s,k] scores:f32[b,s,e] dscores?:f32[l*e] -> dlogits:f32[b,s,e]",
                "b, b+l space"}},
     .check = check_choice_dx,
     .work = work_of_choice_dx,
     .samples = {of("b=2 s=8 e=4 k=1 l=1 scores=positive +dscores", sample_of_choice_dx()),
                 of("b=4 s=4 e=4 k=1 l=4 scores=positive +dscores", sample_of_choice_dx(4)),
                 of("b=4 s=4 e=4 k=2 l=1 scores=positive +dscores", sample_of_choice_dx()),
                 of("b=4 s=4 e=4 k=3 l=4 scores=positive +dscores", sample_of_choice_dx(4, true))}},
};

}  // namespace

std::span<const OpDef> top_k_ops() { return table; }

}  // namespace lancet::ops
