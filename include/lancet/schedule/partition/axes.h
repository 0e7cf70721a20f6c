// Which axis each instruction of a region is split along (Lancet, section 5.2).
#pragma once
#include <span>
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/ops/op.h"

namespace lancet::schedule {

// Per instruction of the Program: the row of its op's partition table, or null where it stays whole.
using AxisRows = std::vector<const ops::PartitionRow*>;

// Starts from the all-to-alls of `members` (irregular on both sides) and follows tensors from instruction to
// instruction: each takes the first row of its op that agrees with the axes its tensors have so far. Axes go by what
// flows where, never by equal sizes. Instructions that no row fits (a whole-batch gate, a weight gradient) stay whole.
// Rows that split another axis than the first are left out: only slices of that one are contiguous.
AxisRows infer_axes(const ir::Program& program, std::span<const ir::InstructionId> members);

}  // namespace lancet::schedule
