// Completes the description of an op from its signatures (Form in lancet/ops/op.h).
#pragma once
#include "lancet/ops/op.h"

namespace lancet::ops {

// Fills in what the forms of `op` say: required and most, infer, aliases, writes, ragged, the partition rows, and the
// operands of samples that give extents alone. An op without forms stays as it is. Throws InternalError if a text is
// not as Form describes it.
void complete(OpDef& op);

}  // namespace lancet::ops
