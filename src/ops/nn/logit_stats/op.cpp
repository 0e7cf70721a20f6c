// Cross-entropy of logits whose columns are split over ranks: the ranks send each other two numbers a token and
// block of columns instead of the logits (vocabulary-parallel loss, Megatron-LM, section 3).
//   logit_stats(logits [B,S,V'], targets i32[B,S]) {vocabulary, blocks} -> stats f32[blocks,B,S,2]: by block of V' /
//       blocks columns, the logarithm of the sum of e^logit, and the target's logit, 0 in blocks without the target
//   loss_of_stats(stats, targets) {total_tokens} -> loss f32[1], dstats f32[blocks,B,S,2]
//   logit_stats_dx(dstats, logits, targets, stats) {vocabulary} -> dlogits in the memory of the logits
// Only the first `vocabulary` columns count, the others are padding: a block of padding alone has a sum of 0, whose
// logarithm is -infinity. The loss is this rank's share of the mean over `total_tokens`, as that of cross_entropy; a
// target of -1 adds nothing to it.
//
// The logarithm of the whole sum is that of the sum of e^(logarithm of a block's sum); its derivative with respect to
// the latter is the block's share of the probability, and with respect to the target's logit -1. Both are factors of
// what a block finds by itself, so that the gradient needs no message.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool are_logits(const TensorType& type) { return is_activation(type.dtype) && type.shape.rank() == 3; }

// Of logits, with an operand or attribute that says how many blocks they have.
TensorType stats_of(const TensorType& logits, std::int64_t blocks) {
  return {DType::f32, {blocks, logits.shape[0], logits.shape[1], 2}};
}

Status check_targets(const TensorType& targets, std::int64_t batch, std::int64_t sequence) {
  if (targets != TensorType{DType::i32, {batch, sequence}}) return expected("targets i32[B,S]");
  return {};
}

Inferred infer(const OpInput& in) {
  const TensorType& logits = in.operands[0];
  if (!are_logits(logits)) return expected("logits [B,S,V] of f32 or bf16");
  LANCET_TRY(check_targets(in.operands[1], logits.shape[0], logits.shape[1]));
  const std::int64_t blocks = in.attributes.integer("blocks");
  if (blocks < 1 || logits.shape[2] % blocks != 0) return expected("a number of blocks that divides V");
  if (in.attributes.integer("vocabulary") < 1) return expected("a vocabulary of at least 1");
  return Types{stats_of(logits, blocks)};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0,
        g.emit("logit_stats_dx", {g.result_gradient(0), forward.operands[0], forward.operands[1], forward.results[0]},
               {{"vocabulary", forward.attributes.integer("vocabulary")}}, ir::Role::dx)[0]);
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &dstats = in.operands[0], &logits = in.operands[1];
  if (!are_logits(logits)) return expected("logits [B,S,V] of f32 or bf16");
  LANCET_TRY(check_targets(in.operands[2], logits.shape[0], logits.shape[1]));
  if (dstats.shape.rank() != 4 || dstats.shape[0] < 1 || dstats != stats_of(logits, dstats.shape[0]) ||
      logits.shape[2] % dstats.shape[0] != 0)
    return expected("dstats f32[blocks,B,S,2] of blocks that divide V");
  if (in.operands[3] != dstats) return expected("stats like dstats");
  if (in.attributes.integer("vocabulary") < 1) return expected("a vocabulary of at least 1");
  return Types{logits};
}

Inferred infer_loss(const OpInput& in) {
  const TensorType& stats = in.operands[0];
  if (stats.dtype != DType::f32 || stats.shape.rank() != 4 || stats.shape[3] != 2)
    return expected("stats f32[blocks,B,S,2]");
  LANCET_TRY(check_targets(in.operands[1], stats.shape[1], stats.shape[2]));
  return Types{{DType::f32, {1}}, stats};
}

void gradient_of_loss(GradientContext& g) { g.add(0, g.instruction().results[1]); }

Work work(const OpInput& in) { return work_per_element(in, 4, 1); }
Work work_dx(const OpInput& in) {
  const double logits = double(in.operands[1].shape.elements());
  return {4 * logits, 2 * logits * size_of(in.operands[1].dtype)};
}
Work work_loss(const OpInput& in) { return work_per_element(in, 8, 3); }

Attributes of(std::int64_t vocabulary) { return {{"vocabulary", vocabulary}}; }
Attributes of(std::int64_t vocabulary, std::int64_t blocks) { return {{"vocabulary", vocabulary}, {"blocks", blocks}}; }
Attributes loss_of(std::int64_t total_tokens) { return {{"vocabulary", 16}, {"total_tokens", total_tokens}}; }

const OpDef table[] = {
    {.name = "logit_stats",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, 0}, {1}, SplitIn::space},
                   {{1, 1}, {2}, SplitIn::space},
                   {{last, none}, {0}, SplitIn::space, {"blocks"}, true}},
     .samples = {{{f32({2, 4, 24}), i32({2, 4}, Fill::tokens)}, of(21, 4)},
                 {{f32({2, 1, 9}), i32({2, 1}, Fill::tokens)}, of(9, 1)},
                 {{bf16({2, 4, 32}), i32({2, 4}, Fill::tokens)}, of(32, 2)}}},
    {.name = "logit_stats_dx",
     .required = 4,
     .infer = infer_dx,
     .work = work_dx,
     .aliases = {{0, 1}},
     .partition = {{{1, 0, 0, 1}, {0}, SplitIn::space},
                   {{2, 1, 1, 2}, {1}, SplitIn::space},
                   {{0, last, none, 0}, {last}, SplitIn::space, {}, true}},
     .samples = {{{f32({4, 2, 4, 2}), f32({2, 4, 24}), i32({2, 4}, Fill::tokens), f32({4, 2, 4, 2})}, of(21)},
                 {{f32({1, 2, 1, 2}), f32({2, 1, 9}), i32({2, 1}, Fill::tokens), f32({1, 2, 1, 2})}, of(9)},
                 {{f32({2, 2, 4, 2}), bf16({2, 4, 32}), i32({2, 4}, Fill::tokens), f32({2, 2, 4, 2})}, of(32)}}},
    {.name = "loss_of_stats",
     .required = 2,
     .infer = infer_loss,
     .gradient = gradient_of_loss,
     .work = work_loss,
     .partition = {{{1, 0}, {partial, 1}, SplitIn::space}, {{2, 1}, {partial, 2}, SplitIn::space}},
     .samples = {{{f32({4, 2, 4, 2}), i32({2, 4}, Fill::tokens)}, loss_of(16)},
                 {{f32({1, 4, 3, 2}), i32({4, 3}, Fill::tokens)}, loss_of(12)}},
     .is_loss = true},
};

}  // namespace

std::span<const OpDef> logit_stats_ops() { return table; }

}  // namespace lancet::ops
