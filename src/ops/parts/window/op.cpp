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
//   repeat(rounds...): runs the body; executors do, so that it has no kernel. Its work is counted as none: where all
//       choices of a layer fit into the first window, which is what is expected, the body does not run.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check_slots(const OpInput& in, Types&) {
  if (in.attributes.integer("slots") < 1) return expected("windows of at least 1 slot");
  return {};
}

Work work(const OpInput& in) { return {0, 2 * bytes_of(in)}; }

Attributes windows(std::int64_t capacity, std::int64_t slots) {
  return {{"capacity", capacity}, {"slots", slots}, {"experts", 4}};
}
// A round from 0 to 2.
Attributes windows_of_round(std::int64_t tokens, std::int64_t slots) {
  return {{"capacity", tokens}, {"slots", slots}, {"experts", 4}, {"tokens", tokens}, {"vocabulary", 3}};
}

Inferred infer_repeat(const OpInput&) { return expected("a body"); }
Work work_repeat(const OpInput&) { return {}; }

// In space a shard takes windows of its own slots, of which it has a share. So other choices are in a round than in the
// whole, and all are in some round.
const OpDef table[] = {
    {.name = "first_window",
     .forms = {{"expert:i32[t,k] slot:i32[t,k] filled:i32[e,2] -> slot:i32[t,k] filled:i32[e,2] windows:i32[1]",
                "t time filled=irregular windows=cumulative, t space filled=partial /slots"}},
     .check = check_slots,
     .work = work,
     .samples = {of("t=16 k=1 e=4", windows(16, 3)), of("t=16 k=1 e=4", windows(16, 16)),
                 of("t=24 k=2 e=4", windows(24, 5))},
     .ragged = Ragged{{}, {}, 2, 1, 2}},
    {.name = "window",
     .forms = {{"slot:i32[t,k] filled:i32[e,2] round:i32[1] -> slot:i32[t,k] filled:i32[e,2]",
                "t time filled=irregular round=cumulative, t space filled=partial /slots"}},
     .check = check_slots,
     .work = work,
     .samples = {of("t=16 k=1 e=4", windows_of_round(16, 3)), of("t=24 k=1 e=4", windows_of_round(24, 5)),
                 of("t=12 k=1 e=4", windows_of_round(12, 1))},
     .ragged = Ragged{{}, {}, 1, 0}},
    {.name = "round", .forms = {{"windows:i32[1] -> round:i32[1]"}}, .kind = Kind::round},
    {.name = "repeat",
     .required = 1,
     .most = any_number,
     .infer = infer_repeat,
     .work = work_repeat,
     .stream = ir::Stream::expert},
};

}  // namespace

std::span<const OpDef> window_ops() { return table; }

}  // namespace lancet::ops
