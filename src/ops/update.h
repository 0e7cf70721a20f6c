// The type rule of the optimizers' updates.
#pragma once
#include "describe.h"
#include "lancet/base/flat_shard.h"
#include "lancet/ops/schedule_layout.h"

namespace lancet::ops {

// Checks the types of update(&w, &state..., gradient, schedule [, &master]) with `states` tensors of state. State,
// gradient and master are f32 of w's shape. A bf16 w has either a master copy, of which it is the rounding to nearest,
// or the attribute `rounding_seed`, by which it is rounded stochastically (base/rounding.h). An update has no results.
// The attribute `shards` makes it an update of this rank's flat shard of w (base/flat_shard.h), one of that number of
// shards: state, gradient and master are f32 of a shard's size, and w is whole.
inline Inferred infer_update(const OpInput& in, std::size_t states) {
  const TensorType& w = in.operands[0];
  const std::int64_t shards = in.attributes.integer("shards", 1);
  if (shards < 1) return expected("at least one shard");
  const bool sharded = in.attributes.has("shards");
  const TensorType full{DType::f32, sharded ? Shape{flat_shard_elements(w.shape.elements(), shards)} : w.shape};
  const std::size_t gradient = states + 1, numbers = states + 2, master = states + 3;
  if (!is_activation(w.dtype)) return expected("w of f32 or bf16");
  for (std::size_t i = 1; i <= gradient; ++i)
    if (in.operands[i] != full) return expected("the optimizer's state and the gradient f32 like w, or like its shard");
  if (!is_vector(in.operands[numbers], schedule::plain) && !is_vector(in.operands[numbers], schedule::clipped))
    return expected("a schedule f32[4] or, clipped, f32[5]");
  const int kept = int(in.operands.size() > master) + int(in.attributes.has("rounding_seed"));
  if (kept != int(w.dtype == DType::bf16)) return expected("a master copy or a rounding_seed exactly where w is bf16");
  if (in.operands.size() > master && in.operands[master] != full)
    return expected("a master copy f32 like w, or like its shard");
  return Types{};
}

}  // namespace lancet::ops
