// Splits instructions into parts (Lancet, section 5; rules 1 and 2 of the design: parts are slices of the full
// buffers, slots are global).
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

// How the tokens of an MoE layer are divided among parts.
enum class Cut {
  batch,     // by sequences: part p has the tokens of its slice of the batch
  capacity,  // by slots of each expert; splits only the experts and their all-to-alls (Tutel)
  peers      // by groups of destination ranks; splits only the experts and their all-to-alls (FasterMoE)
};

// By tensor of the program: true for what is said of each token's choices, that is the slots in the experts' buffers,
// and what the instructions that read these say of the same choices (experts, weights and gradients of these).
std::vector<bool> per_token_tensors(const ir::Program& program);

struct Split {
  AxisRows rows;
  std::vector<int> parts;  // per instruction; 1: whole. Greater than 1 only where `rows` has a row
  Cut cut = Cut::batch;
  bool all_helpers = false;  // also makes helpers (joins, split slots, copies) that nothing reads, to find their costs
  // Of a cut along the batch, per instruction: the number of its pipeline. If given, the parts of a pipeline have
  // memory of their own: copies split what they read from outside of it, and copies join what is read there (Lancet,
  // Fig. 8a). If empty, the parts of a tensor that something reads whole are slices of it, and nothing is copied.
  std::vector<int> pipeline = {};
  // Of a program that is a range of a step's instructions: per_token_tensors of the step. Empty: of the program.
  std::vector<bool> per_token = {};
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
