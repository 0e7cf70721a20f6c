// combine(slots, route) -> y copies the experts' results back to the tokens, times the gate's probability:
// y[t] = weight[t] * slots[expert[t], slot[t]], 0 for a dropped token, which only the residual connection carries on.
// combine_dx(dy, slots, route) -> dslots, in the memory of the slots, and dweight, of each token's probability.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &slots = in.operands[0], &route = in.operands[1];
  if (!is_activation(slots.dtype) || slots.shape.rank() != 3) return expected("slots [E,C,D] of f32 or bf16");
  const std::int64_t batch = in.attributes.integer("batch");
  if (route.dtype != DType::route || route.shape[1] != slots.shape[0] || batch < 1 || route.shape[0] % batch)
    return expected("route[B*S,E]");
  return Types{{slots.dtype, {batch, route.shape[0] / batch, slots.shape[2]}}};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &dy = in.operands[0], &slots = in.operands[1], &route = in.operands[2];
  if (!is_activation(dy.dtype) || dy.shape.rank() != 3) return expected("dy [B,S,D] of f32 or bf16");
  if (route.dtype != DType::route || route.shape[0] != dy.shape.rows()) return expected("route[B*S,E]");
  if (slots.dtype != dy.dtype || slots.shape.rank() != 3 || slots.shape[0] != route.shape[1] ||
      slots.shape[2] != dy.shape[2])
    return expected("slots [E,C,D] of dy's type");
  return Types{slots, {DType::f32, {dy.shape[0], dy.shape[1]}}};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const auto results =
      g.emit("combine_dx", {g.result_gradient(0), forward.operands[0], forward.operands[1]}, {}, ir::Role::dx);
  g.add(0, results[0]);
  g.add(1, results[1]);
}

Work work(const OpInput& in) {  // counts tokens, not slots
  const TensorType& slots = in.operands[0];
  const double bytes =
      double(std::min(slots.shape.rows(), in.operands[1].shape[0]) * slots.shape.back()) * size_of(slots.dtype);
  return {bytes, 2 * bytes};
}
Work work_dx(const OpInput& in) {
  const double bytes = double(ir::bytes(in.operands[0]));
  return {2 * bytes, 3 * bytes};
}

const OpDef table[] = {
    {.name = "combine",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{irregular, irregular}, {0}}},
     .samples = {{{f32({4, 4, 24}), route({16, 4})}, {{"capacity", 4}, {"tokens", 16}, {"batch", 2}}},
                 {{bf16({4, 6, 24}), route({16, 4})}, {{"capacity", 6}, {"tokens", 16}, {"batch", 4}}}}},
    {.name = "combine_dx",
     .required = 3,
     .infer = infer_dx,
     .work = work_dx,
     .aliases = {{0, 1}},
     .partition = {{{0, irregular, irregular}, {irregular, 0}}},
     .samples = {{{f32({2, 8, 24}), f32({4, 5, 24}), route({16, 4})}, {{"capacity", 5}, {"tokens", 16}}}}},
};

}  // namespace

std::span<const OpDef> combine_ops() { return table; }

}  // namespace lancet::ops
