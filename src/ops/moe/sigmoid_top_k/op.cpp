// sigmoid_top_k(logits [, bias]) {k [, normalize] [, expert_groups, top_groups] [, scale]} chooses k experts of a token
// by s + bias, where s_e = sigmoid(logit_e) and bias f32[E] balances the load of the experts (DeepSeek-V3, section
// 2.1.2; the bias: Wang et al., Auxiliary-Loss-Free Load Balancing). The experts form `expert_groups` groups of
// neighbours (1 without the attribute). A group's score is the sum of its two largest s + bias, or its only one, and a
// token chooses experts of the `top_groups` groups with the largest scores alone. Results, of T = B*S tokens:
//   expert i32[T,K]: the choices, by falling s + bias, equals by rising expert; of groups with equal scores the lower
//       one is taken. NaN as in top_k
//   weight f32[T,K]: s of the choices, without bias; with normalize=1 divided by their sum + 1e-20; times scale (1)
//   scores f32[B,S,E]: s divided by the sum over all experts + 1e-20, for the auxiliary loss
// The bias has no gradient of a loss. What stands in its place is the number of choices of each expert
// (ops/moe/choice_counts), by which the update moves it (ops/optim/balance_bias).
#include "math.h"
#include "ops/moe/top_k/choice.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const std::int64_t choices = in.attributes.integer("k");
  auto results = infer_choice(in, choices);
  if (!results.ok()) return results;
  const std::int64_t experts = in.operands[0].shape[2], groups = in.attributes.integer("expert_groups", 1);
  const std::int64_t open = in.attributes.integer("top_groups", groups);
  if (groups < 1 || groups > routing::most_expert_groups || experts % groups != 0)
    return expected("expert_groups that divide the experts, at most 64");
  if (open < 1 || open > groups || choices > open * (experts / groups))
    return expected("top_groups that have k experts, at most all groups");
  if (in.operands.size() > 1 && !is_vector(in.operands[1], experts)) return expected("bias f32[E]");
  return results;
}

// sigmoid_top_k_dx(dweight, expert, logits [, dscores]) {[normalize] [, scale] [, load_tokens]}: see infer_choice_dx.
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
     .required = 1,
     .most = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .counted = {1},
     .partition = {{{0, none}, {0, 0, 0}}},
     .samples = {{{f32({2, 8, 4})}, {{"k", 1}}},
                 {{f32({4, 3, 5}), f32({5})}, {{"k", 2}}},
                 {{f32({2, 8, 4})}, scaled({{"k", 2}, {"normalize", 1}})},
                 {{f32({4, 3, 12}), f32({12})},
                  scaled({{"k", 3}, {"normalize", 1}, {"expert_groups", 4}, {"top_groups", 2}})},
                 {{f32({4, 2, 6})}, {{"k", 3}, {"expert_groups", 6}, {"top_groups", 4}}}},
     .kind = Kind::choice},
    {.name = "sigmoid_top_k_dx",
     .required = 3,
     .most = 4,
     .infer = infer_choice_dx,
     .work = work_of_choice_dx,
     .partition = {{{0, 0, 0, none}, {0}}, {{0, 0, 0, 0}, {0}, SplitIn::space}},
     .samples = {{{f32({16, 1}), expert_of(16), f32({2, 8, 4}), f32({4})}, sample_of_choice_dx()},
                 {{f32({16, 2}), expert_of(16, 2), f32({4, 4, 4}), f32({16})}, scaled(sample_of_choice_dx(4))},
                 {{f32({16, 3}), expert_of(16, 3), f32({4, 4, 4}), f32({16})}, scaled(sample_of_choice_dx(4, true))},
                 {{f32({16, 2}), expert_of(16, 2), f32({4, 4, 4})}, sample_of_choice_dx(0, true)}}},
};

}  // namespace

std::span<const OpDef> sigmoid_top_k_ops() { return table; }

}  // namespace lancet::ops
