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

Inferred infer(const OpInput& in) { return infer_choice(in, in.attributes.integer("k")); }

Inferred infer_every(const OpInput& in) {
  const Shape& logits = in.operands[0].shape;
  if (logits.rank() != 3) return expected("logits f32[B,S,E]");
  return infer_choice(in, logits[2]);
}

// top_k_dx(dweight, expert, scores [, dscores]) {[normalize] [, load_tokens]}: see infer_choice_dx.
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
     .required = 1,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0}, {0, 0, 0}}},
     .samples = {{{f32({2, 8, 4})}, {{"k", 1}}},
                 {{f32({4, 3, 5})}, {{"k", 1}}},
                 {{f32({2, 8, 4})}, {{"k", 2}}},
                 {{f32({4, 3, 5})}, {{"k", 3}, {"normalize", 1}}},
                 {{f32({2, 1, 3})}, {{"k", 3}, {"normalize", 1}}}},
     .kind = Kind::choice},
    {.name = "every_expert",
     .required = 1,
     .infer = infer_every,
     .gradient = gradient,
     .work = work_every,
     .partition = {{{0}, {0, 0, 0}}},
     .samples = {{{f32({2, 8, 4})}, {}}, {{f32({4, 3, 5})}, {}}},
     .kind = Kind::choice},
    {.name = "top_k_dx",
     .required = 3,
     .most = 4,
     .infer = infer_choice_dx,
     .work = work_of_choice_dx,
     .partition = {{{0, 0, 0, none}, {0}}, {{0, 0, 0, 0}, {0}, SplitIn::space}},
     .samples = {{{f32({16, 1}), expert_of(16), f32({2, 8, 4}, Fill::positive), f32({4})}, sample_of_choice_dx()},
                 {{f32({16, 1}), expert_of(16), f32({4, 4, 4}, Fill::positive), f32({16})}, sample_of_choice_dx(4)},
                 {{f32({16, 2}), expert_of(16, 2), f32({4, 4, 4}, Fill::positive), f32({4})}, sample_of_choice_dx()},
                 {{f32({16, 3}), expert_of(16, 3), f32({4, 4, 4}, Fill::positive), f32({16})},
                  sample_of_choice_dx(4, true)}}},
};

}  // namespace

std::span<const OpDef> top_k_ops() { return table; }

}  // namespace lancet::ops
