// Checks that a Program is structurally sound, independent of its ops: every value is made once and before its use, a
// tensor fits into the tensor in whose memory it is stored, a value whose memory was overwritten is not read again,
// shardings fit the shapes, outputs exist, and what the step before has left may run beside this one (step_border.h).
// verify() of ops/catalogue.h checks types.
#pragma once
#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

// Errors (ExitCode::internal) name the tensor and the instruction.
Status verify(const Program& program);

}  // namespace lancet::ir
