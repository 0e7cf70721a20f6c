// The router's product, logits = x w^T with w f32[E,D] and no bias, in f32 for any type of activations. Each token's
// logits depend on its own row only, bit for bit, so that the parts of a batch route as the whole does.
//   router(x [B,S,D], w) -> logits f32[B,S,E];  router_dx(dlogits, w) -> dx
//   router_dw(dlogits, x [, dw accumulator]) -> dw
#include "ops/describe.h"

namespace lancet::ops {
namespace {

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
     .forms = {{"x[b,s,d] w:f32[e,d] -> logits:f32[b,s,e]", "b, s"}},
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .samples = {of("b=2 s=4 d=24 e=4"), of("b=2 s=6 d=33 e=3 bf16")},
     .is_router = true,
     .kind = Kind::product},
    {.name = "router_dx",
     .forms = {{"dlogits:f32[b,s,e] w:f32[e,d] -> dx:@dtype[b,s,d]", "b, s"}},
     .work = work_dx,
     .samples = {of("b=2 s=4 e=5 d=24", {{"dtype", "f32"}}), of("b=2 s=4 e=5 d=24", {{"dtype", "bf16"}})},
     .kind = Kind::product},
    {.name = "router_dw",
     .forms = {{"dlogits:f32[b,s,e] x[b,s,d] -> +dw:f32[e,d]", "b space, s space"}},
     .work = work,
     .samples = {of("b=2 s=4 e=5 d=24 +dw"), of("b=2 s=4 e=5 d=24 bf16")},
     .kind = Kind::product},
};

}  // namespace

std::span<const OpDef> router_ops() { return table; }

}  // namespace lancet::ops
