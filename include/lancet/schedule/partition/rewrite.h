// Splits instructions into parts (Lancet, section 5; rules 1 and 2 of the design: parts are slices of the full
// buffers, slots are global).
#pragma once
#include <vector>

#include "lancet/schedule/partition/axes.h"

namespace lancet::schedule {

// How a MoE layer's tokens are shared out over parts.
enum class Cut {
  batch,     // by sequences: part p has the tokens of its slice of the batch
  capacity,  // by slots of each expert, around the experts only (Tutel)
  peers      // by groups of ranks that the tokens go to, around the experts only (FasterMoE)
};

struct Split {
  AxisRows rows;
  std::vector<int> parts;  // per instruction; 1: whole. More only where `rows` has a row
  Cut cut = Cut::batch;
  bool all_helpers = false;  // also the joins and split routes that nothing reads: for the costs
};

struct Rewritten {
  ir::Program program;
  std::vector<int> origin;  // per instruction: that of the source it is a part of; -1: made for the parts
};

// The parts of an instruction stand one behind another, in its place; each carries the attributes part and parts. An
// instruction that stays whole reads the whole memory and so waits for all parts. A layer's backward all-to-alls are
// split in as many parts as its forward ones or not at all.
Rewritten rewrite(const ir::Program& program, const Split& split);

}  // namespace lancet::schedule
