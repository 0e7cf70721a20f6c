// What the descriptions of the optimizers' updates share.
#pragma once
#include "ops/describe.h"

namespace lancet::ops {

// Types of update(&w, &state..., gradient, schedule [, &master]): `states` tensors of state, all but w and schedule f32
// like w; a fourth number of the schedule where the gradient is scaled by it; a master copy exactly where w is bf16. An
// update has no results.
inline Inferred infer_update(const OpInput& in, std::size_t states) {
  const TensorType& w = in.operands[0];
  const TensorType full{DType::f32, w.shape};
  const std::size_t gradient = states + 1, schedule = states + 2, master = states + 3;
  if (!is_activation(w.dtype)) return expected("w of f32 or bf16");
  for (std::size_t i = 1; i <= gradient; ++i)
    if (in.operands[i] != full) return expected("the optimizer's state and the gradient f32 like w");
  if (!is_vector(in.operands[schedule], 3) && !is_vector(in.operands[schedule], 4))
    return expected("a schedule f32[3] or, clipped, f32[4]");
  if ((w.dtype == DType::bf16) != (in.operands.size() > master))
    return expected("a master copy exactly where w is bf16");
  if (in.operands.size() > master && in.operands[master] != full) return expected("a master copy f32 like w");
  return Types{};
}

}  // namespace lancet::ops
