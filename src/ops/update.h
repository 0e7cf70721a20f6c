// What the descriptions of the optimizers' updates share.
#pragma once
#include "ops/describe.h"

namespace lancet::ops {

// Types of update(&w, &state..., gradient, clip, schedule [, &master]): `states` tensors of state, all but w, clip and
// schedule f32 like w; a master copy exactly where w is bf16. An update has no results.
inline Inferred infer_update(const OpInput& in, std::size_t states) {
  const TensorType& w = in.operands[0];
  const TensorType full{DType::f32, w.shape};
  const std::size_t gradient = states + 1, clip = states + 2, schedule = states + 3, master = states + 4;
  if (!is_activation(w.dtype)) return expected("w of f32 or bf16");
  for (std::size_t i = 1; i <= gradient; ++i)
    if (in.operands[i] != full) return expected("the optimizer's state and the gradient f32 like w");
  if (!is_vector(in.operands[clip], 2) || !is_vector(in.operands[schedule], 3))
    return expected("clip f32[2] and schedule f32[3]");
  if ((w.dtype == DType::bf16) != (in.operands.size() > master))
    return expected("a master copy exactly where w is bf16");
  if (in.operands.size() > master && in.operands[master] != full) return expected("a master copy f32 like w");
  return Types{};
}

}  // namespace lancet::ops
