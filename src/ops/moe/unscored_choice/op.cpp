// Choices of one expert a token that read no scores, so that the router has no weights. Results, of T = B*S tokens:
// expert i32[T,1] and weight f32[T,1], which is 1.
//   hash_choice(tokens i32[B,S]) {experts, seed}: by the token's id, in all sequences the same (Roller et al., Hash
//       Layers: a random hash)
//   random_choice(sequence i32[B,1]) {experts, positions, seed}: the S = positions tokens of a sequence are dealt out
//       at random, so that the experts' numbers of tokens differ by at most one. sequence is the number of each
//       sequence in the whole run; the choice depends on (seed, sequence, position) and on no part, rank or micro
//       batch.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Types of_one_expert(std::int64_t tokens) { return {{DType::i32, {tokens, 1}}, {DType::f32, {tokens, 1}}}; }

Inferred infer_hash(const OpInput& in) {
  const TensorType& tokens = in.operands[0];
  if (tokens.dtype != DType::i32 || tokens.shape.rank() != 2) return expected("tokens i32[B,S]");
  if (in.attributes.integer("experts") < 1) return expected("at least one expert");
  return of_one_expert(tokens.shape.elements());
}

Inferred infer_random(const OpInput& in) {
  const TensorType& sequence = in.operands[0];
  if (sequence.shape.rank() != 2 || !is_of_sequences(sequence, sequence.shape[0])) return expected("sequence i32[B,1]");
  const std::int64_t positions = in.attributes.integer("positions");
  if (positions < 1 || positions > std::int64_t{1} << 24) return expected("1 to 2^24 positions");
  if (in.attributes.integer("experts") < 1) return expected("at least one expert");
  return of_one_expert(sequence.shape[0] * positions);
}

// About 50 integer operations draw a number. A random choice draws 8 for each of the up to 4 times, 2 on average, that
// a large sequence's position is mapped, and one more.
Work work_hash(const OpInput& in) {
  const double tokens = double(in.operands[0].shape.elements());
  return {50 * tokens, 12 * tokens};
}
Work work_random(const OpInput& in) {
  const double tokens = double(in.operands[0].shape[0] * in.attributes.integer("positions"));
  return {50 * 17 * tokens, 8 * tokens};
}

Sample sample_hash(std::int64_t batch, std::int64_t positions, std::int64_t experts) {
  return {{i32({batch, positions}, Fill::tokens)}, {{"experts", experts}, {"seed", 42}, {"vocabulary", 500}}};
}
Sample sample_random(std::int64_t batch, std::int64_t positions, std::int64_t experts) {
  return {{i32({batch, 1}, Fill::tokens)},
          {{"experts", experts}, {"positions", positions}, {"seed", 1234567890123}, {"vocabulary", 500}}};
}

const OpDef table[] = {
    {.name = "hash_choice",
     .required = 1,
     .infer = infer_hash,
     .work = work_hash,
     .partition = {{{0}, {0, 0}}},
     .samples = {sample_hash(2, 8, 4), sample_hash(3, 5, 7), sample_hash(4, 16, 1)},
     .kind = Kind::choice},
    {.name = "random_choice",
     .required = 1,
     .infer = infer_random,
     .work = work_random,
     .partition = {{{0}, {0, 0}}},
     .samples = {sample_random(2, 8, 4), sample_random(3, 5, 7), sample_random(4, 16, 3), sample_random(2, 300, 8)},
     .kind = Kind::choice},
};

}  // namespace

std::span<const OpDef> unscored_choice_ops() { return table; }

}  // namespace lancet::ops
