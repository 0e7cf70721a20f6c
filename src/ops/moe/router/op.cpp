// The router's product, logits = x w^T with w f32[E,D] and no bias, in f32 for any type of activations. Each token's
// logits depend on its own row only, bit for bit, so that the parts of a batch route as the whole does.
//   router(x [B,S,D], w) -> logits f32[B,S,E];  router_dx(dlogits, w) -> dx
//   router_dw(dlogits, x [, dw accumulator]) -> dw
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &x = in.operands[0], &w = in.operands[1];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [B,S,D] of f32 or bf16");
  if (w.dtype != DType::f32 || w.shape.rank() != 2 || w.shape[1] != x.shape[2]) return expected("w f32[E,D]");
  return Types{{DType::f32, with_back(x.shape, w.shape[0])}};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &dlogits = in.operands[0], &w = in.operands[1];
  if (dlogits.dtype != DType::f32 || dlogits.shape.rank() != 3) return expected("dlogits f32[B,S,E]");
  if (w.dtype != DType::f32 || w.shape.rank() != 2 || w.shape[0] != dlogits.shape[2]) return expected("w f32[E,D]");
  const auto dtype = parse_dtype(in.attributes.text("dtype"));
  if (!dtype || !is_activation(*dtype)) return expected("dtype f32 or bf16");
  return Types{{*dtype, with_back(dlogits.shape, w.shape[1])}};
}

Inferred infer_dw(const OpInput& in) {
  const TensorType &dlogits = in.operands[0], &x = in.operands[1];
  if (dlogits.dtype != DType::f32 || dlogits.shape.rank() != 3) return expected("dlogits f32[B,S,E]");
  if (!is_activation(x.dtype) || x.shape != with_back(dlogits.shape, x.shape.back())) return expected("x [B,S,D]");
  const TensorType dw{DType::f32, {dlogits.shape[2], x.shape[2]}};
  if (in.operands.size() > 2 && in.operands[2] != dw) return expected("an accumulator like the result");
  return Types{dw};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const TensorId dlogits = g.result_gradient(0);
  if (g.needs_gradient(0)) {
    const std::string dtype(name(g.type(forward.operands[0]).dtype));
    g.add(0, g.emit("router_dx", {dlogits, forward.operands[1]}, {{"dtype", dtype}}, ir::Role::dx)[0]);
  }
  emit_dw(g, "router_dw", {dlogits, forward.operands[0]}, {}, 1);
}

Work work(const OpInput& in) {
  const Shape& other = in.operands[1].shape;
  const double flops = 2.0 * double(in.operands[0].shape.elements()) * double(other.rank() == 2 ? other[0] : other[2]);
  return {flops, bytes_of(in) * 1.5};
}
Work work_dx(const OpInput& in) {
  return {2.0 * double(in.operands[0].shape.elements()) * double(in.operands[1].shape[1]), bytes_of(in) * 1.5};
}

const OpDef table[] = {
    {.name = "router",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .partition = {{{0, none}, {0}}, {{1, none}, {1}}},
     .samples = {{{f32({2, 4, 24}), f32({4, 24})}, {}}, {{bf16({2, 6, 33}), f32({3, 33})}, {}}},
     .is_router = true,
     .kind = Kind::product},
    {.name = "router_dx",
     .required = 2,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{0, none}, {0}}, {{1, none}, {1}}},
     .samples = {{{f32({2, 4, 5}), f32({5, 24})}, {{"dtype", "f32"}}},
                 {{f32({2, 4, 5}), f32({5, 24})}, {{"dtype", "bf16"}}}},
     .kind = Kind::product},
    {.name = "router_dw",
     .required = 2,
     .most = 3,
     .infer = infer_dw,
     .work = work,
     .aliases = {{0, 2}},
     .partition = {{{0, 0, accumulated}, {accumulated}, SplitIn::space},
                   {{1, 1, accumulated}, {accumulated}, SplitIn::space}},
     .samples = {{{f32({2, 4, 5}), f32({2, 4, 24}), f32({5, 24})}, {}}, {{f32({2, 4, 5}), bf16({2, 4, 24})}, {}}},
     .kind = Kind::product},
};

}  // namespace

std::span<const OpDef> router_ops() { return table; }

}  // namespace lancet::ops
