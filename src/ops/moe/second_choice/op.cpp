// What GShard decides about a token's two choices between the choice itself (ops/moe/top_k) and the gate
// (ops/moe/slots).
//
// skip_second(expert i32[T,2], weight f32[T,2], sequence i32[B,1]) {seed, experts, keep} -> drawn i32[T,2]: the same
// choices, for the gate alone, but the second one of a token is skipped (token_slots.h) unless 2 * g2 > u, where g2 is
// its weight and u is uniform in [0, 1): it is sent with probability min(1, 2 * g2) (GShard, section 2.2 and algorithm
// 1). keep=1: a skipped choice still counts towards its expert's capacity, as in algorithm 1; keep=0: it does not, as
// in Lingvo's code. sequence is the number of each sequence in the whole run; u is drawn by (seed, sequence, position),
// so it depends on no part, rank or micro batch.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_skip(const OpInput& in) {
  const TensorType &expert = in.operands[0], &sequence = in.operands[2];
  if (!is_of_tokens(expert) || expert.shape[1] != 2) return expected("expert i32[T,2]");
  if (in.operands[1] != TensorType{DType::f32, expert.shape}) return expected("weight f32[T,2]");
  if (sequence.shape.rank() != 2 || !is_of_sequences(sequence, sequence.shape[0]) ||
      expert.shape[0] % sequence.shape[0] != 0)
    return expected("sequence i32[B,1], where B divides T");
  if (const std::int64_t keep = in.attributes.integer("keep"); keep != 0 && keep != 1) return expected("keep=0 or 1");
  return Types{expert};
}

// About 50 integer operations draw a number.
Work work_skip(const OpInput& in) {
  return {50 * double(in.operands[0].shape[0]), 2 * double(ir::bytes(in.operands[0])) + bytes_of(in) / 2};
}

Sample sample_skip(std::int64_t tokens, std::int64_t batch, std::int64_t keep) {
  const Attributes attributes{
      {"seed", 1234567890123}, {"keep", keep}, {"experts", 4}, {"capacity", tokens}, {"vocabulary", 1000}};
  return {{expert_of(tokens, 2), weight_of(tokens, 2), i32({batch, 1}, Fill::tokens)}, attributes};
}

const OpDef table[] = {
    {.name = "skip_second",
     .required = 3,
     .infer = infer_skip,
     .work = work_skip,
     .partition = {{{0, 0, 0}, {0}}},
     .samples = {sample_skip(16, 2, 0), sample_skip(16, 4, 1), sample_skip(60, 3, 1)}},
};

}  // namespace

std::span<const OpDef> second_choice_ops() { return table; }

}  // namespace lancet::ops
