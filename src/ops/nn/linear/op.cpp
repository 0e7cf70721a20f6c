// y = x w^T + b, with w as [out, in]; dX and dW are separate ops (Lancet, section 4). Attribute streamed=1: a kernel
// for a row or two (generation), whose time is that of reading w; its sums may have another order.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const TensorId dy = g.result_gradient(0);
  const bool bias = forward.operands.size() > 2;
  if (g.needs_gradient(0)) g.add(0, g.emit("linear_dx", {dy, forward.operands[1]}, {}, ir::Role::dx)[0]);
  emit_dw(g, "linear_dw", {dy, forward.operands[0]}, {{"bias", std::int64_t(bias)}}, 1, bias ? 2 : 1);
}

// The work of a product of the extents rows, n and k; bytes: of both operands and the result.
Work product(double rows, double n, double k, double bytes) { return {2 * rows * n * k, bytes}; }

Work work(const OpInput& in) {
  const Shape &x = in.operands[0].shape, &w = in.operands[1].shape;
  const double result = double(x.rows()) * double(w[0]) * size_of(in.operands[0].dtype);
  return product(double(x.rows()), double(w[0]), double(w[1]), bytes_of(in) + result);
}
Work work_dx(const OpInput& in) {
  const Shape &dy = in.operands[0].shape, &w = in.operands[1].shape;
  const double result = double(dy.rows()) * double(w[1]) * size_of(in.operands[0].dtype);
  return product(double(dy.rows()), double(w[0]), double(w[1]), bytes_of(in) + result);
}
Work work_dw(const OpInput& in) {
  const Shape &dy = in.operands[0].shape, &x = in.operands[1].shape;
  return product(double(dy.rows()), double(dy.back()), double(x.back()),
                 bytes_of(in) + 4.0 * double(dy.back() * x.back()));
}

const OpDef table[] = {
    {.name = "linear",
     .forms = {{"x[...,k] w[n,k] b?:f32[n] -> y[...,n]", "0, 1, n, k space b=once"}},
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .samples = {of("...=2,4 k=24 n=16 +b"), of("...=4,2 k=7 n=6"), of("...=2,4 k=32 n=48 bf16 +b"),
                 of("...=2,1 k=300 n=130 +b", {{"streamed", 1}}), of("...=1,2 k=9 n=5", {{"streamed", 1}}),
                 of("...=1,1 k=300 n=200 bf16", {{"streamed", 1}})},
     .kind = Kind::product,
     .again = Again{}},
    {.name = "linear_dx",
     .forms = {{"dy[...,n] w[n,k] -> dx[...,k]", "0, 1, k, n space"}},
     .work = work_dx,
     .samples = {of("...=2,4 n=16 k=24"), of("...=2,4 n=48 k=32 bf16")},
     .kind = Kind::product},
    {.name = "linear_dw",
     .forms = {{"dy[...,n] x[...,k] -> +dw:f32[n,k] +db?bias:f32[n]", "0, 1 space, n space, k space db=whole"}},
     .work = work_dw,
     .samples = {of("...=2,4 n=16 k=24", {{"bias", 1}}), of("...=2,3 n=8 k=4 +dw +db", {{"bias", 1}}),
                 of("...=2,4 n=16 k=24 bf16 +dw", {{"bias", 0}})},
     .kind = Kind::product},
};

}  // namespace

std::span<const OpDef> linear_ops() { return table; }

}  // namespace lancet::ops
