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

Status check_keep(const OpInput& in, Types&) {
  if (const std::int64_t keep = in.attributes.integer("keep"); keep != 0 && keep != 1) return expected("keep=0 or 1");
  return {};
}

// About 50 integer operations draw a number.
Work work_skip(const OpInput& in) {
  return {50 * double(in.operands[0].shape[0]), 2 * double(ir::bytes(in.operands[0])) + bytes_of(in) / 2};
}

Attributes draws(std::int64_t tokens, std::int64_t keep) {
  return {{"seed", 1234567890123}, {"keep", keep}, {"experts", 4}, {"capacity", tokens}, {"vocabulary", 1000}};
}

const OpDef table[] = {
    {.name = "skip_second",
     .forms = {{"expert:i32[b*s,2] weight:f32[b*s,2] sequence:i32[b,1] -> drawn:i32[b*s,2]", "b"}},
     .check = check_keep,
     .work = work_skip,
     .samples = {of("b=2 s=8", draws(16, 0)), of("b=4 s=4", draws(16, 1)), of("b=3 s=20", draws(60, 1))}},
};

}  // namespace

std::span<const OpDef> second_choice_ops() { return table; }

}  // namespace lancet::ops
