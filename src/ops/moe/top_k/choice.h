// What the rules of all ops that choose experts share: their results, and the gradient of their scores.
#pragma once
#include "ops/describe.h"

namespace lancet::ops {

inline bool is_flag(const OpInput& in, std::string_view name) {
  const std::int64_t value = in.attributes.integer(name, 0);
  return value == 0 || value == 1;
}

// The results of a choice of K of the experts of logits f32[B,S,E]: expert i32[T,K], weight f32[T,K], scores
// f32[B,S,E].
inline Inferred infer_choice(const OpInput& in, std::int64_t choices) {
  const TensorType& logits = in.operands[0];
  if (logits.dtype != DType::f32 || logits.shape.rank() != 3) return expected("logits f32[B,S,E]");
  const std::int64_t tokens = logits.shape.rows();
  if (choices < 1 || choices > logits.shape[2]) return expected("k from 1 to the number of experts");
  if (!is_flag(in, "normalize")) return expected("normalize=0 or 1");
  return Types{{DType::i32, {tokens, choices}}, {DType::f32, {tokens, choices}}, logits};
}

// Emits `op`(dweight, expert, of_experts [, dscores]), the gradient of a choice's operand 0. of_experts f32[B,S,E]: the
// logits or the scores, whichever the gradient is computed from. If the gradients of the scores are of several runs of
// tokens, load_tokens says how many tokens a run has.
inline void emit_choice_dx(GradientContext& g, std::string_view op, TensorId of_experts, Attributes attributes) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{g.result_gradient(1), forward.results[0], of_experts};
  if (forward.attributes.has("normalize")) attributes.set("normalize", forward.attributes.integer("normalize"));
  if (const TensorId shared = g.result_gradient(2); shared.valid()) {
    operands.push_back(shared);
    const Shape& scores = g.type(forward.results[2]).shape;
    if (const std::int64_t loads = g.type(shared).shape.elements() / scores.back(); loads > 1)
      attributes.set("load_tokens", scores.rows() / loads);
  }
  g.add(0, g.emit(op, operands, attributes, ir::Role::dx)[0]);
}

// The types of such an op: dweight f32[T,K] is the gradient of the weights; dscores f32[L*E] that of all scores, the
// same for every token of each of L runs of neighbours (the auxiliary loss). Attribute load_tokens: the tokens of a
// run, if there are several. A part takes dscores whole and finds its tokens' runs by the attributes part and parts.
inline Inferred infer_choice_dx(const OpInput& in) {
  const TensorType &dweight = in.operands[0], &expert = in.operands[1], &of_experts = in.operands[2];
  if (of_experts.dtype != DType::f32 || of_experts.shape.rank() != 3) return expected("scores or logits f32[B,S,E]");
  const Shape& p = of_experts.shape;
  if (!is_of_tokens(expert, p.rows())) return expected("expert i32[B*S,K]");
  if (dweight != TensorType{DType::f32, expert.shape}) return expected("dweight f32[B*S,K]");
  if (!is_flag(in, "normalize")) return expected("normalize=0 or 1");
  if (in.operands.size() > 3) {
    const std::int64_t loads = in.operands[3].shape.elements() / p[2];
    const std::int64_t tokens = p.rows() * in.attributes.integer("parts", 1);
    if (!is_vector(in.operands[3], loads * p[2]) || !counts_tokens(in, loads, tokens))
      return expected("dscores f32[L*E]");
  }
  return Types{of_experts};
}

inline Work work_of_choice_dx(const OpInput& in) {
  const double elements = double(in.operands[2].shape.elements());
  return {6 * elements, 8 * elements + double(ir::bytes(in.operands[0]) + ir::bytes(in.operands[1]))};
}

// Attributes of samples of a choice's gradient, of 4 experts.
inline Attributes sample_of_choice_dx(std::int64_t load_tokens = 0, bool normalize = false) {
  Attributes attributes{{"capacity", 8}, {"experts", 4}};
  if (load_tokens > 0) attributes.set("load_tokens", load_tokens);
  if (normalize) attributes.set("normalize", std::int64_t(1));
  return attributes;
}

}  // namespace lancet::ops
