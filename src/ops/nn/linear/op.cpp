// y = x w^T + b, with w as [out, in]; dX and dW are separate ops (Lancet, section 4). Attribute streamed=1: a kernel
// for a row or two (generation), whose time is that of reading w; its sums may have another order.
#include "ops/product_types.h"

namespace lancet::ops {
namespace {

// linear_dw(dy, x [, dw accumulator [, db accumulator]]) {bias=0|1} -> dw [, db]
Inferred infer_dw(const OpInput& in) {
  const TensorType &dy = in.operands[0], &x = in.operands[1];
  if (!is_activation(dy.dtype) || dy.dtype != x.dtype || dy.shape.rank() < 2 || dy.shape.rows() != x.shape.rows())
    return expected("dy [...,N] and x [...,K] of one type with the same rows");
  Types results{{DType::f32, {dy.shape.back(), x.shape.back()}}};
  if (in.attributes.integer("bias", 0)) results.push_back({DType::f32, {dy.shape.back()}});
  const std::size_t accumulator = in.operands.size() - 2;
  if (accumulator != 0 && accumulator != results.size()) return expected("an accumulator for each result or none");
  for (std::size_t i = 0; i < accumulator; ++i)
    if (in.operands[2 + i] != results[i]) return expected("accumulators like the results");
  return results;
}

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
     .required = 2,
     .most = 3,
     .infer = linear_types,
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .partition = {{{0, none, none}, {0}},
                   {{1, none, none}, {1}},
                   {{none, 0, 0}, {last}},
                   {{last, 1, once}, {partial}, SplitIn::space}},
     .samples = {{{f32({2, 4, 24}), f32({16, 24}), f32({16})}, {}},
                 {{f32({4, 2, 7}), f32({6, 7})}, {}},
                 {{bf16({2, 4, 32}), bf16({48, 32}), f32({48})}, {}},
                 {{f32({2, 1, 300}), f32({130, 300}), f32({130})}, {{"streamed", 1}}},
                 {{f32({1, 2, 9}), f32({5, 9})}, {{"streamed", 1}}},
                 {{bf16({1, 1, 300}), bf16({200, 300})}, {{"streamed", 1}}}},
     .kind = Kind::product,
     .again = Again{}},
    {.name = "linear_dx",
     .required = 2,
     .infer = linear_dx_types,
     .work = work_dx,
     .partition = {{{0, none}, {0}}, {{1, none}, {1}}, {{none, 1}, {last}}, {{last, 0}, {partial}, SplitIn::space}},
     .samples = {{{f32({2, 4, 16}), f32({16, 24})}, {}}, {{bf16({2, 4, 48}), bf16({48, 32})}, {}}},
     .kind = Kind::product},
    {.name = "linear_dw",
     .required = 2,
     .most = 4,
     .infer = infer_dw,
     .work = work_dw,
     .aliases = {{0, 2}, {1, 3}},
     .partition = {{{0, 0, accumulated, accumulated}, {accumulated, accumulated}},
                   {{1, 1, accumulated, accumulated}, {accumulated, accumulated}, SplitIn::space},
                   {{last, none, 0, 0}, {0, 0}, SplitIn::space},
                   {{none, last, 1, none}, {1, none}, SplitIn::space}},
     .samples = {{{f32({2, 4, 16}), f32({2, 4, 24})}, {{"bias", 1}}},
                 {{f32({2, 3, 8}), f32({2, 3, 4}), f32({8, 4}), f32({8})}, {{"bias", 1}}},
                 {{bf16({2, 4, 16}), bf16({2, 4, 24}), f32({16, 24})}, {{"bias", 0}}}},
     .kind = Kind::product},
};

}  // namespace

std::span<const OpDef> linear_ops() { return table; }

}  // namespace lancet::ops
