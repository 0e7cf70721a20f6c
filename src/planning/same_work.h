// Whether a plan that a user brings computes what the model computes.
#pragma once
#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::planning {

// expected: the step without a policy. found: verified; it may be in parts, in another order, its all-reduces cut
// anew. The same named tensors and outputs, the same instructions with the same numbers, each of them on what the
// model's has as its operands, and as many bytes of gradients that travel. Config errors name the instruction.
Status same_work(const ir::Program& found, const ir::Program& expected);

}  // namespace lancet::planning
