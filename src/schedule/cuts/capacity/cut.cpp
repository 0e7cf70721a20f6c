#include "schedule/cuts/cuts.h"

namespace lancet::schedule {

const Cut& capacity_cut() {
  static const Cut cut{
      .name = "capacity",
      .words = {.parts = "parts",
                .splits = "the filled slots of each expert's buffer, in equal shares",
                .pairs = "all-to-all, experts, all-to-all back; both passes",
                .rewrites = "irregular rows of the ops' tables; split_capacity and capacity_rows split slots and rows",
                .memory = "none: parts fill one buffer of full size",
                .launches = "one of each op and message a part",
                .source = "Tutel (Hwang et al., MLSys 2023), adaptive pipelining"},
      .rows = expert_rows,
      .part_counts = any_count,
      .filled = {.op = "split_capacity"},
      .received = {.op = "capacity_rows", .attribute = "ranks"}};
  return cut;
}

}  // namespace lancet::schedule
