// dispatch copies tokens into their experts' slots, [B,S,D] -> [E,C,D]. Slots without a token are not written, and no
// op reads them. dispatch_dx copies the gradients of the slots back to the tokens; that of a dropped token is zero.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &x = in.operands[0], &route = in.operands[1];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [B,S,D] of f32 or bf16");
  if (route.dtype != DType::route || route.shape[0] != x.shape.rows()) return expected("route[B*S,E]");
  const TensorType slots{x.dtype, {route.shape[1], in.attributes.integer("capacity"), x.shape[2]}};
  return Types{slots};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &slots = in.operands[0], &route = in.operands[1];
  if (!is_activation(slots.dtype) || slots.shape.rank() != 3) return expected("dslots [E,C,D] of f32 or bf16");
  const std::int64_t batch = in.attributes.integer("batch");
  if (route.dtype != DType::route || route.shape[1] != slots.shape[0] || batch < 1 || route.shape[0] % batch)
    return expected("route[B*S,E]");
  return Types{{slots.dtype, {batch, route.shape[0] / batch, slots.shape[2]}}};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const std::int64_t batch = g.type(forward.operands[0]).shape[0];
  g.add(0, g.emit("dispatch_dx", {g.result_gradient(0), forward.operands[1]}, {{"batch", batch}}, ir::Role::dx)[0]);
}

// Each token's row is read and written once; the size of the buffer does not matter.
Work work(const OpInput& in) {
  const TensorType& first = in.operands[0];
  const std::int64_t rows = std::min(first.shape.rows(), in.operands[1].shape[0]);
  return {0, 2 * double(rows * first.shape.back()) * size_of(first.dtype)};
}

const OpDef table[] = {
    {.name = "dispatch",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, irregular}, {irregular}}},
     .samples = {{{f32({2, 8, 24}), route({16, 4})}, {{"capacity", 4}, {"tokens", 16}}},
                 {{bf16({4, 4, 17}), route({16, 3})}, {{"capacity", 16}, {"tokens", 16}}}}},
    {.name = "dispatch_dx",
     .required = 2,
     .infer = infer_dx,
     .work = work,
     .partition = {{{irregular, irregular}, {0}}},
     .samples = {{{f32({4, 4, 24}), route({16, 4})}, {{"capacity", 4}, {"tokens", 16}, {"batch", 2}}},
                 {{bf16({4, 6, 24}), route({16, 4})}, {{"capacity", 6}, {"tokens", 16}, {"batch", 4}}}}},
};

}  // namespace

std::span<const OpDef> dispatch_ops() { return table; }

}  // namespace lancet::ops
