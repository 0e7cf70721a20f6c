#include "blocks.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "lancet/ir/micro_batches.h"

namespace lancet::passes {

using ir::Instruction;
using ir::Role;
using ir::TensorId;

std::vector<std::size_t> makers_of(const ir::Program& program) {
  std::vector<std::size_t> made(program.tensors.size(), program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for (const TensorId id : program.instructions[i].results) made[id.index()] = i;
  return made;
}

int block_count(const ir::Program& program) {
  int count = 0;
  for (const Instruction& at : program.instructions) count = std::max(count, ir::block_of(at.label).value_or(-1) + 1);
  return count;
}

std::vector<int> blocks_of(const ir::Program& program) {
  std::vector<int> blocks(program.instructions.size());
  const std::vector<std::size_t> made = makers_of(program);
  std::map<std::string_view, int> of_label;
  const int count = block_count(program);
  int reached = -1;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (const auto block = ir::block_of(at.label)) {
      blocks[i] = reached = *block;
      continue;
    }
    if (at.role == Role::forward) {
      blocks[i] = of_label.try_emplace(at.label, reached + 1 == count ? count : 0).first->second;
      continue;
    }
    const auto known = of_label.find(at.label);
    blocks[i] = count;
    if (known != of_label.end()) {
      blocks[i] = known->second;
      continue;
    }
    for (const TensorId id : at.operands)
      if (made[id.index()] < i) {
        blocks[i] = blocks[made[id.index()]];
        break;
      }
  }
  return blocks;
}

}  // namespace lancet::passes
