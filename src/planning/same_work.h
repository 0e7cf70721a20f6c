// Checks that a plan of the user's computes the same step as the model.
#pragma once
#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::planning {

// expected: the sequential step. found: a verified Program, whose instructions may be in parts and in another order,
// and whose all-reduces may be chunked differently. Both must have the same named tensors and outputs, the same
// instructions with the same attributes and operands, and the same bytes of gradients in all-reduces. Config errors
// name the instruction.
Status same_work(const ir::Program& found, const ir::Program& expected);

}  // namespace lancet::planning
