// Splits instructions into parts (Lancet, section 5; rules 1 and 2 of the design: parts are slices of the full
// buffers, slots are global).
#pragma once
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/schedule/partition/split.h"

namespace lancet::schedule {

struct Rewritten {
  ir::Program program;
  std::vector<int> origin;  // per instruction: the source instruction that it is (a part of); -1: a helper of the parts
};

// Replaces each split instruction by its parts, one after another; each carries the attributes part and parts. An
// instruction that stays whole reads the whole memory and so waits for all parts. A layer's backward all-to-alls are
// split in as many parts as its forward ones or not at all.
Rewritten rewrite(const ir::Program& program, const Split& split);

}  // namespace lancet::schedule
