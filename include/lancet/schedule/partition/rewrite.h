// Splits instructions into parts (Lancet, section 5; rules 1 and 2 of the design: parts are slices of the full
// buffers, slots are global).
#pragma once
#include <vector>

#include "lancet/schedule/partition/axes.h"

namespace lancet::schedule {

// How the tokens of an MoE layer are divided among parts.
enum class Cut {
  batch,     // by sequences: part p has the tokens of its slice of the batch
  capacity,  // by slots of each expert; splits only the experts and their all-to-alls (Tutel)
  peers      // by groups of destination ranks; splits only the experts and their all-to-alls (FasterMoE)
};

struct Split {
  AxisRows rows;
  std::vector<int> parts;  // per instruction; 1: whole. Greater than 1 only where `rows` has a row
  Cut cut = Cut::batch;
  bool all_helpers = false;  // also makes joins and split routes that nothing reads, so that their costs are known
};

struct Rewritten {
  ir::Program program;
  std::vector<int> origin;  // per instruction: the source instruction that it is (a part of); -1: a helper of the parts
};

// Replaces each split instruction by its parts, one after another; each carries the attributes part and parts. An
// instruction that stays whole reads the whole memory and so waits for all parts. A layer's backward all-to-alls are
// split in as many parts as its forward ones or not at all.
Rewritten rewrite(const ir::Program& program, const Split& split);

}  // namespace lancet::schedule
