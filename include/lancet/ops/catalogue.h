// The catalogue: every op by name. The table is collected from the folders of src/ops at build time.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "lancet/ops/op.h"

namespace lancet::ops {

std::span<const OpDef* const> all_ops();      // sorted by name
const OpDef* find_op(std::string_view name);  // null if unknown
const OpDef& op(std::string_view name);       // InternalError if unknown

// The kind of an instruction's op; Kind::other if the op is unknown.
inline Kind kind(const ir::Instruction& instruction) {
  const OpDef* found = find_op(instruction.op);
  return found ? found->kind : Kind::other;
}

// True for an instruction over the rows that are sent to experts; its attribute tokens is their expected number.
inline bool is_over_expert_rows(const ir::Instruction& instruction) { return instruction.attributes.has("tokens"); }

// True for the experts' computation, which works on the rows that a rank received.
inline bool is_of_experts(const ir::Instruction& instruction) {
  return instruction.stream == ir::Stream::compute && is_over_expert_rows(instruction) &&
         kind(instruction) != Kind::part_helper;
}

// True for a collective that changes which shard of this axis of its operand a rank has.
bool moves(const ir::Instruction& instruction, Axis axis);

// True if some row of the instruction's op divides this attribute among parts in time.
bool is_divided(const ir::Instruction& instruction, std::string_view attribute);

// True if the row's index has the same extent in all tensors, so that they can be split in the same blocks. False for
// attention's heads, which are 12 of one tensor and 12 x 64 features of another.
bool has_one_extent(std::span<const TensorType> operands, std::span<const TensorType> results, const PartitionRow& row);

// The blocks in which an entry of the row splits its axis, in an instruction with these attributes: 1 if the entry is
// not `packed`.
ir::Blocks blocks_of(const PartitionRow& row, Axis axis, const Attributes& attributes);

// The attributes of each of n equal parts, in time or in space, that a row makes of an instruction with `attributes`.
// Those that the row divides are rounded down, since some are expected numbers (tokens).
Attributes attributes_of_share(const PartitionRow& row, const Attributes& attributes, std::int64_t n);

// True if the row makes n equal parts of the instruction: n divides the axes that the row names, and the op's rule for
// types makes the parts of its results from those of its operands.
bool has_shares(const ir::Program& program, const ir::Instruction& instruction, const PartitionRow& row,
                std::int64_t n);

// Appends op(operands...) to the program: infers the results' types, applies aliases, writes and the stream.
// Throws InternalError with the op, the label and the types if they do not fit.
std::vector<TensorId> append(ir::Program& program, std::string_view op, std::vector<TensorId> operands,
                             Attributes attributes, ir::Role role, std::string label);

// Checks the structure (ir::verify), and types, stream, updates and memory of each instruction against its OpDef.
Status verify(const ir::Program& program);

// By tensor: true for those that some instruction takes as an operand that its op counts choices for (OpDef::counted).
std::vector<bool> find_counted(const ir::Program& program);

// The work of an instruction, by its op's rule; without one, no flops and the bytes of all operands and results.
Work work(const ir::Program& program, const ir::Instruction& instruction);

}  // namespace lancet::ops
