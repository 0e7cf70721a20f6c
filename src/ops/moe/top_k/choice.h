// What the rules of all ops that choose experts share: their results, and the gradient of their scores.
#pragma once
#include "ops/describe.h"

namespace lancet::ops {

inline Status check_normalize(const OpInput& in) {
  const std::int64_t normalize = in.attributes.integer("normalize", 0);
  return normalize == 0 || normalize == 1 ? Status() : expected("normalize=0 or 1");
}

// A choice of K of the experts of logits f32[B,S,E] -> expert i32[T,K], weight f32[T,K], scores f32[B,S,E].
inline Status check_choice(const OpInput& in, Types& results) {
  if (results[0].shape[1] < 1 || results[0].shape[1] > in.operands[0].shape[2])
    return expected("k from 1 to the number of experts");
  return check_normalize(in);
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

// Of such an op dweight f32[T,K] is the gradient of the weights; dscores f32[L*E] that of all scores, the same for
// every token of each of L runs of neighbours (the auxiliary loss). Attribute load_tokens: the tokens of a run, if
// there are several. A part takes dscores whole and finds its tokens' runs by the attributes part and parts.
inline Status check_choice_dx(const OpInput& in, Types&) {
  LANCET_TRY(check_normalize(in));
  const Shape& scores = in.operands[2].shape;
  if (scores[2] < 1) return expected("at least one expert");
  if (in.operands.size() < 4) return {};
  const std::int64_t loads = in.operands[3].shape[0] / scores[2];
  if (!counts_tokens(in, loads, scores.rows() * in.attributes.integer("parts", 1)))
    return expected("dscores f32[L*E] of loads of load_tokens");
  return {};
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
