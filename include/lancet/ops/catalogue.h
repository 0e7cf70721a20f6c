// The catalogue: every op by name. The table is collected from the folders of src/ops at build time.
#pragma once
#include <span>
#include <string_view>

#include "lancet/ops/op.h"

namespace lancet::ops {

std::span<const OpDef* const> all_ops();      // sorted by name
const OpDef* find_op(std::string_view name);  // null if unknown
const OpDef& op(std::string_view name);       // InternalError if unknown

// Of an instruction's op; other if it is unknown.
inline Kind kind(const ir::Instruction& instruction) {
  const OpDef* found = find_op(instruction.op);
  return found ? found->kind : Kind::other;
}

// Appends op(operands...) to the program: infers the results' types, applies aliases, writes and the stream.
// Types that do not fit are an InternalError that names the op, the label and the types.
std::vector<TensorId> append(ir::Program& program, std::string_view op, std::vector<TensorId> operands,
                             Attributes attributes, ir::Role role, std::string label);

// Structure (ir::verify) and types: every instruction is what the catalogue says of its op.
Status verify(const ir::Program& program);

// Work of an instruction, with all rows filled.
Work work(const ir::Program& program, const ir::Instruction& instruction);

}  // namespace lancet::ops
