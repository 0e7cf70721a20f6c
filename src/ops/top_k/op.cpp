// top_k(logits) {k [, normalize]} chooses the k experts with a token's largest logits (Shazeer et al.; k = 1: Fedus et
// al.). It looks at no other token. Results, of T = B*S tokens with K = k choices each:
//   expert i32[T,K]: the choices, by falling logit, equals by rising expert. A NaN is chosen after all numbers, but at
//       expert 0 before them.
//   weight f32[T,K]: the scores of the choices; with normalize=1 divided by their sum, which is the softmax over the
//       chosen logits alone
//   scores f32[B,S,E]: the softmax over all logits
// The slots of the choices are another op's decision (ops/slots), which may depend on other tokens.
#include <algorithm>

#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool is_flag(const OpInput& in, std::string_view name) {
  const std::int64_t value = in.attributes.integer(name, 0);
  return value == 0 || value == 1;
}

Inferred infer(const OpInput& in) {
  const TensorType& logits = in.operands[0];
  if (logits.dtype != DType::f32 || logits.shape.rank() != 3) return expected("logits f32[B,S,E]");
  const std::int64_t tokens = logits.shape.rows(), choices = in.attributes.integer("k");
  if (choices < 1 || choices > logits.shape[2]) return expected("k from 1 to the number of experts");
  if (!is_flag(in, "normalize")) return expected("normalize=0 or 1");
  return Types{{DType::i32, {tokens, choices}}, {DType::f32, {tokens, choices}}, logits};
}

// If the gradients of the scores are of several runs of tokens, load_tokens says how many tokens a run has.
void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{g.result_gradient(1), forward.results[0], forward.results[2]};
  Attributes attributes;
  if (forward.attributes.has("normalize")) attributes.set("normalize", forward.attributes.integer("normalize"));
  if (const TensorId shared = g.result_gradient(2); shared.valid()) {
    operands.push_back(shared);
    const Shape& scores = g.type(forward.results[2]).shape;
    if (const std::int64_t loads = g.type(shared).shape.elements() / scores.back(); loads > 1)
      attributes.set("load_tokens", scores.rows() / loads);
  }
  g.add(0, g.emit("top_k_dx", operands, attributes, ir::Role::dx)[0]);
}

// top_k_dx(dweight, expert, scores [, dscores]) {[normalize] [, load_tokens]}: dweight f32[T,K] is the gradient of the
// weights; dscores f32[L*E] that of all scores, the same for every token of each of L runs of neighbours (the auxiliary
// loss). Attribute load_tokens: the tokens of a run, if there are several.
Inferred infer_dx(const OpInput& in) {
  const TensorType &dweight = in.operands[0], &expert = in.operands[1], &scores = in.operands[2];
  if (scores.dtype != DType::f32 || scores.shape.rank() != 3) return expected("scores f32[B,S,E]");
  const Shape& p = scores.shape;
  if (!is_of_tokens(expert, p.rows())) return expected("expert i32[B*S,K]");
  if (dweight != TensorType{DType::f32, expert.shape}) return expected("dweight f32[B*S,K]");
  if (!is_flag(in, "normalize")) return expected("normalize=0 or 1");
  if (in.operands.size() > 3) {
    const std::int64_t loads = in.operands[3].shape.elements() / p[2];
    if (!is_vector(in.operands[3], loads * p[2]) || !counts_tokens(in, loads, p.rows()))
      return expected("dscores f32[L*E]");
  }
  return Types{scores};
}

// An exponential per expert; then each choice looks at all experts.
Work work(const OpInput& in) {
  const Shape& logits = in.operands[0].shape;
  const double elements = double(logits.elements()), choices = double(in.attributes.integer("k"));
  return {(11 + choices) * elements, 8 * elements + 8 * choices * double(logits.rows())};
}
Work work_dx(const OpInput& in) {
  const double elements = double(in.operands[2].shape.elements());
  return {6 * elements, 8 * elements + double(ir::bytes(in.operands[0]) + ir::bytes(in.operands[1]))};
}

Attributes sample_dx(std::int64_t load_tokens = 0, bool normalize = false) {
  Attributes attributes{{"capacity", 8}, {"experts", 4}};
  if (load_tokens > 0) attributes.set("load_tokens", load_tokens);
  if (normalize) attributes.set("normalize", std::int64_t(1));
  return attributes;
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
    {.name = "top_k_dx",
     .required = 3,
     .most = 4,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{0, 0, 0, none}, {0}}, {{0, 0, 0, 0}, {0}, SplitIn::space}},
     .samples = {{{f32({16, 1}), expert_of(16), f32({2, 8, 4}, Fill::positive), f32({4})}, sample_dx()},
                 {{f32({16, 1}), expert_of(16), f32({4, 4, 4}, Fill::positive), f32({16})}, sample_dx(4)},
                 {{f32({16, 2}), expert_of(16, 2), f32({4, 4, 4}, Fill::positive), f32({4})}, sample_dx()},
                 {{f32({16, 3}), expert_of(16, 3), f32({4, 4, 4}, Fill::positive), f32({16})}, sample_dx(4, true)}}},
};

}  // namespace

std::span<const OpDef> top_k_ops() { return table; }

}  // namespace lancet::ops
