// The global norm of the gradients and the factor that clips it.
//   squared_norm(g, ...) -> f32[1]: the sum of squares, in an order that does not depend on the number of threads
//   clip_scale(sum, ...) {max_norm} -> f32[2]: the norm, and the factor min(1, max_norm / norm). A max_norm of 0 does
//     not clip. The factor is NaN if the norm is not finite.
//   clipped_schedule(schedule, clip) -> f32[5]: the optimizer's schedule f32[4] (ops/schedule_layout.h) followed by the
//     factor of clip_scale
#include "lancet/ops/schedule_layout.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_norm(const OpInput& in) {
  for (const TensorType& type : in.operands)
    if (type.dtype != DType::f32) return expected("f32 tensors");
  return Types{{DType::f32, {1}}};
}

Inferred infer_scale(const OpInput& in) {
  for (const TensorType& type : in.operands)
    if (!is_vector(type, 1)) return expected("sums of squares f32[1]");
  return Types{{DType::f32, {2}}};
}

Work work(const OpInput& in) { return {bytes_of(in) / 2, bytes_of(in)}; }

const OpDef table[] = {
    {.name = "squared_norm",
     .required = 1,
     .most = any_number,
     .infer = infer_norm,
     .work = work,
     .samples = {{{f32({300, 7}), f32({5})}, {}}}},
    {.name = "clip_scale",
     .required = 1,
     .most = any_number,
     .infer = infer_scale,
     .work = work,
     .samples = {{{f32({1}, Fill::positive), f32({1}, Fill::positive)}, {{"max_norm", 0.5}}}}},
    {.name = "clipped_schedule",
     .forms = {{"schedule:f32[4] clip:f32[2] -> clipped:f32[5]"}},
     .samples = {of("schedule=positive clip=positive")}},
};

}  // namespace

std::span<const OpDef> clip_ops() { return table; }

}  // namespace lancet::ops
