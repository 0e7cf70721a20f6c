// The block of the model that each instruction of a step belongs to.
#pragma once
#include <vector>

#include "lancet/ir/program.h"

namespace lancet::passes {

// By tensor: the instruction that makes it; the number of instructions if none does.
std::vector<std::size_t> makers_of(const ir::Program& program);

int block_count(const ir::Program& program);

// The block of each instruction: 0 before the first one; after the last one, the number of blocks. The backward pass
// has the labels of the forward pass; what neither names is with its first operand that an instruction makes.
std::vector<int> blocks_of(const ir::Program& program);

}  // namespace lancet::passes
