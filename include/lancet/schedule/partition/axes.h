// Axis inference: finds the axis along which each instruction of a region can be split (Lancet, section 5.2).
#pragma once
#include <span>
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/ops/op.h"

namespace lancet::schedule {

// Per instruction of the Program: the row of its op's partition table, or null if it stays whole.
using AxisRows = std::vector<const ops::PartitionRow*>;

// Starts from the all-to-alls of `members` (irregular on both sides) and follows tensors from instruction to
// instruction: each takes the first row of its op that agrees with the axes already known for its tensors. Axes follow
// the flow of data, never equal sizes. Instructions that no row fits (a whole-batch gate, a weight gradient) stay
// whole. Rows that split an axis other than the first are ignored: only slices of the first axis are contiguous.
AxisRows infer_axes(const ir::Program& program, std::span<const ir::InstructionId> members);

}  // namespace lancet::schedule
