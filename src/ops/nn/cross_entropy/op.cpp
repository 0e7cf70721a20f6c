// Cross-entropy of logits [B,S,V'] with targets i32[B,S], over the first `vocabulary` columns (the rest is padding).
//   cross_entropy -> loss f32[1]
//   cross_entropy_train -> loss, dlogits in the memory of the logits, so that there is no second tensor of their size
// The loss is this rank's share of the mean over `total_tokens`, the tokens of the whole batch. A target of -1 adds
// nothing to it.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &logits = in.operands[0], &targets = in.operands[1];
  if (!is_activation(logits.dtype) || logits.shape.rank() != 3) return expected("logits [B,S,V] of f32 or bf16");
  if (targets != TensorType{DType::i32, {logits.shape[0], logits.shape[1]}}) return expected("targets i32[B,S]");
  const std::int64_t vocabulary = in.attributes.integer("vocabulary");
  if (vocabulary < 1 || vocabulary > logits.shape[2]) return expected("a vocabulary of 1 to V");
  return Types{{DType::f32, {1}}};
}

Inferred infer_train(const OpInput& in) {
  LANCET_ASSIGN(Types types, infer(in));
  types.push_back(in.operands[0]);
  return types;
}

void gradient(GradientContext& g) { g.add(0, g.instruction().results[1]); }

Work work(const OpInput& in) { return work_per_element(in, 8, 2); }

std::vector<Sample> samples() {
  return {{{f32({2, 4, 24}), i32({2, 4}, Fill::tokens)}, {{"vocabulary", 21}, {"total_tokens", 16}}},
          {{f32({2, 1, 8}), i32({2, 1}, Fill::tokens)}, {{"vocabulary", 8}, {"total_tokens", 2}}},
          {{bf16({2, 4, 32}), i32({2, 4}, Fill::tokens)}, {{"vocabulary", 32}, {"total_tokens", 8}}}};
}

const OpDef table[] = {
    {.name = "cross_entropy",
     .required = 2,
     .infer = infer,
     .work = work,
     .partition = {{{0, 0}, {partial}}, {{1, 1}, {partial}}},
     .samples = samples()},
    {.name = "cross_entropy_train",
     .required = 2,
     .infer = infer_train,
     .gradient = gradient,
     .work = work,
     .aliases = {{1, 0}},
     .partition = {{{0, 0}, {partial, 0}}, {{1, 1}, {partial, 1}, SplitIn::space}},
     .samples = samples(),
     .is_loss = true},
};

}  // namespace

std::span<const OpDef> cross_entropy_ops() { return table; }

}  // namespace lancet::ops
