#include "schedule/cuts/cuts.h"

namespace lancet::schedule {

const Cut& capacity_cut() {
  static const Cut cut{
      .name = "capacity",
      .words = {.parts = "parts",
                .splits = "the filled slots of each expert's buffer, in equal shares",
                .pairs = "all-to-all, experts, all-to-all back, and the counts before them; both passes",
                .rewrites = "irregular rows of the ops' tables; split_capacity splits what the gate filled",
                .memory = "none: parts fill one buffer of full size",
                .launches = "one of each op and message a part",
                .source = "Tutel (Hwang et al., MLSys 2023), adaptive pipelining"},
      .rows = expert_rows,
      .part_counts = any_count,
      .filled = {.op = "split_capacity"}};
  return cut;
}

}  // namespace lancet::schedule
