// What the descriptions of the optimizers' updates share.
#pragma once
#include "lancet/ops/schedule_layout.h"
#include "describe.h"

namespace lancet::ops {

// Types of update(&w, &state..., gradient, schedule [, &master]): `states` tensors of state, all but w and schedule f32
// like w. Where w is bf16 it is the rounding of a master copy to nearest, or, with the attribute `rounding_seed`, has
// no master and is rounded stochastically (base/rounding.h). An update has no results.
inline Inferred infer_update(const OpInput& in, std::size_t states) {
  const TensorType& w = in.operands[0];
  const TensorType full{DType::f32, w.shape};
  const std::size_t gradient = states + 1, numbers = states + 2, master = states + 3;
  if (!is_activation(w.dtype)) return expected("w of f32 or bf16");
  for (std::size_t i = 1; i <= gradient; ++i)
    if (in.operands[i] != full) return expected("the optimizer's state and the gradient f32 like w");
  if (!is_vector(in.operands[numbers], schedule::plain) && !is_vector(in.operands[numbers], schedule::clipped))
    return expected("a schedule f32[4] or, clipped, f32[5]");
  const int kept = int(in.operands.size() > master) + int(in.attributes.has("rounding_seed"));
  if (kept != int(w.dtype == DType::bf16)) return expected("a master copy or a rounding_seed exactly where w is bf16");
  if (in.operands.size() > master && in.operands[master] != full) return expected("a master copy f32 like w");
  return Types{};
}

}  // namespace lancet::ops
