// Windows over the slots that a gate gave. Without a limit on the choices that an expert keeps, these may be more than
// its buffer has slots, C. Window r has the slots [r * C, (r + 1) * C) of every expert, numbered from 0 on: all ops
// between dispatch and combine work on a window as on the slots of a gate that keeps C. Attribute slots: C.
//   first_window(expert i32[T,K], slot i32[T,K], filled i32[E,2]) -> slot, filled, windows i32[1]: window 0, and the
//       number of windows that hold all choices of these tokens, those of the parts before included; at least 1. The
//       experts say which slots a part of the tokens fills (split_filled). The number of a group of ranks is the
//       largest of theirs; it comes with the counts of their all-to-alls (all_to_all_counts_windows).
//   window(slot, filled, round i32[1]) -> slot, filled: window `round`
//   round(windows) -> round i32[1]: begins the body of a repeat (ir/program.h), which runs for the rounds from 1 to
//       windows - 1. The pass fold_repeats makes it the repeat's own result, so that it has no kernel.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

const TensorType one_number{DType::i32, {1}};

Status check_slots(const OpInput& in, const TensorType& slot, const TensorType& filled) {
  if (!is_of_tokens(slot)) return expected("slot i32[T,K]");
  if (filled.shape.rank() != 2 || !is_filled(filled, filled.shape[0])) return expected("filled i32[E,2]");
  if (in.attributes.integer("slots") < 1) return expected("windows of at least 1 slot");
  return {};
}

Inferred infer_first(const OpInput& in) {
  LANCET_TRY(check_slots(in, in.operands[1], in.operands[2]));
  if (in.operands[0] != in.operands[1]) return expected("expert i32[T,K] of the slots");
  return Types{in.operands[1], in.operands[2], one_number};
}

Inferred infer_window(const OpInput& in) {
  LANCET_TRY(check_slots(in, in.operands[0], in.operands[1]));
  if (in.operands[2] != one_number) return expected("round i32[1]");
  return Types{in.operands[0], in.operands[1]};
}

Inferred infer_round(const OpInput& in) {
  return in.operands[0] == one_number ? Inferred(Types{one_number}) : Inferred(expected("windows i32[1]"));
}

Work work(const OpInput& in) { return {0, 2 * bytes_of(in)}; }

Sample sample_of(std::int64_t tokens, std::int64_t choices, std::int64_t capacity, std::int64_t slots) {
  return {{expert_of(tokens, choices), slot_of(tokens, choices), filled_of(4)},
          {{"capacity", capacity}, {"slots", slots}, {"experts", 4}}};
}
// A round from 0 to 2.
Sample sample_of_round(std::int64_t tokens, std::int64_t capacity, std::int64_t slots) {
  return {{slot_of(tokens), filled_of(4), i32({1}, Fill::tokens)},
          {{"capacity", capacity}, {"slots", slots}, {"experts", 4}, {"tokens", tokens}, {"vocabulary", 3}}};
}

// In space a shard takes windows of its own slots, of which it has a share. So other choices are in a round than in the
// whole, and all are in some round.
const OpDef table[] = {
    {.name = "first_window",
     .required = 3,
     .infer = infer_first,
     .work = work,
     .partition = {{{0, 0, irregular}, {0, irregular, cumulative}, SplitIn::time},
                   {{0, 0, partial}, {0, partial, partial}, SplitIn::space, {"slots"}}},
     .samples = {sample_of(16, 1, 16, 3), sample_of(16, 1, 16, 16), sample_of(24, 2, 24, 5)},
     .ragged = Ragged{{}, {}, 2, 1, 2}},
    {.name = "window",
     .required = 3,
     .infer = infer_window,
     .work = work,
     .partition = {{{0, partial, none}, {0, partial}, SplitIn::space, {"slots"}}},
     .samples = {sample_of_round(16, 16, 3), sample_of_round(24, 24, 5), sample_of_round(12, 12, 1)},
     .ragged = Ragged{{}, {}, 1, 0}},
    {.name = "round", .required = 1, .infer = infer_round, .begins_repeat = true},
};

}  // namespace

std::span<const OpDef> window_ops() { return table; }

}  // namespace lancet::ops
