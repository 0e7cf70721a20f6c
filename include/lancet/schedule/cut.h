// The cuts: along which axis a communication and the computation beside it are split in parts. Each is one constant in
// src/schedule/cuts.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/ops/op.h"
#include "lancet/ops/peer_parts.h"

namespace lancet::schedule {

// Per instruction of the Program: the row of its op's partition table, or null if it stays whole. A repeat has a row if
// every instruction of its body has one: it is made of those.
using AxisRows = std::vector<std::shared_ptr<const ops::PartitionRow>>;

// Starts from the all-to-alls of `members` (irregular on both sides), without one from the first axis of the sequences
// that the model is given, and follows tensors from instruction to instruction: each takes the first row of its op that
// agrees with the axes already known for its tensors. Axes follow the flow of data, never equal sizes. Instructions
// that no row fits (a whole-batch gate, a weight gradient) stay whole. Rows that split an axis other than the first are
// ignored: only slices of the first axis are contiguous.
AxisRows infer_axes(const ir::Program& program, std::span<const ir::InstructionId> members);

// The ranks among which tokens travel to their experts, and how many of them share a host: 1 if nothing is known of
// hosts, or if they are not told apart (Layout::ranks_sharing_host()).
struct TokenRanks {
  std::int64_t ranks = 1, on_host = 1;
};

// The op that splits what was made for all parts at once: filled slots i32[E,2], or rows i32[E/W,W+1].
struct SplitOp {
  std::string_view op = {};         // empty: the parts make their own
  std::string_view attribute = {};  // which it takes from an instruction of the layer, if any
  bool by_choices = false;          // its operands are the slots of the part's tokens, and the part before
};

// What a cut says of itself, for `lancet plan --cuts`: one line each.
struct CutWords {
  std::string_view parts;  // what one of its parts is called, plural
  std::string_view splits, pairs, rewrites, memory, launches, source;
};

// The axis of a tensor [B,S,...] or [T,...] whose slices of consecutive tokens are ranges of its memory.
inline int axis_of_tokens(const Shape& shape) { return shape.rank() > 1 && shape[0] == 1 ? 1 : 0; }

struct Cut {
  std::string_view name;
  CutWords words;
  // The instructions that can be split, and by which rows of their ops.
  AxisRows (*rows)(const ir::Program&);
  // Those of the numbers of parts `wanted` (ascending, all at least 2) that the step can be split in; a cut whose parts
  // follow from the ranks gives the numbers that these make, from the first to the last of `wanted`.
  std::vector<int> (*part_counts)(const ir::Program&, const AxisRows&, const TokenRanks&, std::span<const int> wanted);
  SplitOp filled = {}, received = {};
  bool has_pipelines = false;  // its parts may have memory of their own, with copies around them (Split::pipeline)
  // Its parts are the positions of a batch of one sequence: in the forward pass from the first on, in the backward pass
  // from the last on (ops::PositionParts).
  bool by_positions = false;
  // Of a cut by ranks: which of them send to each other in each part. Null: parts have equal shares of the tokens.
  ops::PeerParts (*peers)(const TokenRanks&, int parts) = nullptr;
};

std::span<const Cut* const> all_cuts();  // by name
// What is split by passes and not by a table of rows: windows of collectives (collective_matmul), and the step's micro
// batches (order_micro_batches).
struct PassCut {
  std::string_view name;
  CutWords words;
};
std::span<const PassCut> pass_cuts();
const Cut& cut_named(std::string_view name);  // InternalError if unknown

// Which instructions of a program are split, along which axes and in how many parts.

// By tensor of the program: true for what is said of each token's choices, that is the slots in the experts' buffers,
// and what the instructions that read these say of the same choices (experts, weights and gradients of these).
std::vector<bool> per_token_tensors(const ir::Program& program);

struct Split {
  AxisRows rows;
  std::vector<int> parts;        // per instruction; 1: whole. Greater than 1 only where `rows` has a row
  std::vector<const Cut*> cuts;  // per instruction: of which cut its row is
  TokenRanks among = {};         // of cuts by ranks
  bool all_helpers = false;  // also makes helpers (joins, split slots, copies) that nothing reads, to find their costs
  // Of a cut along the batch, per instruction: the number of its pipeline. If given, the parts of a pipeline have
  // memory of their own: copies split what they read from outside of it, and copies join what is read there (Lancet,
  // Fig. 8a). If empty, the parts of a tensor that something reads whole are slices of it, and nothing is copied.
  std::vector<int> pipeline = {};
  // Of a program that is a range of a step's instructions: per_token_tensors of the step. Empty: of the program.
  std::vector<bool> per_token = {};
};

// Both splits at once: where `b` splits an instruction, it decides.
Split joined(Split a, const Split& b);

// Splits instructions into parts (Lancet, section 5; rules 1 and 2 of the design: parts are slices of the full
// buffers, slots are global).
struct Rewritten {
  ir::Program program;
  std::vector<int> origin;  // per instruction: the source instruction that it is (a part of); -1: a helper of the parts
};

// Replaces each split instruction by its parts, one after another; each carries the attributes part and parts. An
// instruction that stays whole reads the whole memory and so waits for all parts. A layer's backward all-to-alls are
// split in as many parts as its forward ones or not at all.
Rewritten rewrite(const ir::Program& program, const Split& split);

// Makes a part of an instruction whose results are sums add onto those of the part before, which the first part has
// not. The results of the last part are the instruction's own; others get new ones.
void add_onto(ir::Program& program, ir::Instruction& part, const std::vector<ir::TensorId>& before, bool is_last);

}  // namespace lancet::schedule
