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

Status check_experts(const OpInput& in, Types&) {
  const std::int64_t positions = in.attributes.integer("positions", 1);
  if (positions < 1 || positions > std::int64_t{1} << 24) return expected("1 to 2^24 positions");
  if (in.attributes.integer("experts") < 1) return expected("at least one expert");
  return {};
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

Attributes hashed(std::int64_t experts) { return {{"experts", experts}, {"seed", 42}, {"vocabulary", 500}}; }
Attributes dealt(std::int64_t experts) { return {{"experts", experts}, {"seed", 1234567890123}, {"vocabulary", 500}}; }

const OpDef table[] = {
    {.name = "hash_choice",
     .forms = {{"tokens:i32[b,s] -> expert:i32[b*s,1] weight:f32[b*s,1]", "b"}},
     .check = check_experts,
     .work = work_hash,
     .samples = {of("b=2 s=8", hashed(4)), of("b=3 s=5", hashed(7)), of("b=4 s=16", hashed(1))},
     .kind = Kind::choice},
    {.name = "random_choice",
     .forms = {{"sequence:i32[b,1] -> expert:i32[b*@positions,1] weight:f32[b*@positions,1]", "b"}},
     .check = check_experts,
     .work = work_random,
     .samples = {of("b=2 @positions=8", dealt(4)), of("b=3 @positions=5", dealt(7)), of("b=4 @positions=16", dealt(3)),
                 of("b=2 @positions=300", dealt(8))},
     .kind = Kind::choice},
};

}  // namespace

std::span<const OpDef> unscored_choice_ops() { return table; }

}  // namespace lancet::ops
