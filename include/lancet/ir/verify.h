// Structural soundness of a Program, whatever its ops: every value is made once and before its use, what lives in
// another tensor's memory fits there, a value whose memory was overwritten is not read again, outputs exist.
// (ops/verify.h checks types against the catalogue.)
#pragma once
#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

Status verify(const Program& program);

}  // namespace lancet::ir
