// Layer norm over the last axis, alone and fused with the residual sum before it:
//   layer_norm(x, gamma, beta) -> y, stats            stats: mean and 1/standard deviation of each row, f32[...,2]
//   add_layer_norm(x, d, gamma, beta) -> x + d, layer_norm(x + d), stats      of the rounded sum, which backward reads
//   layer_norm_dx(dy, x, gamma, stats [, dsum]) -> dx
//   layer_norm_dw(dy, x, stats [, dgamma accumulator, dbeta accumulator]) -> dgamma, dbeta
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Shape stats_shape(const Shape& x) { return with_back(x, 2); }

Inferred infer_norm(const TensorType& x, const TensorType& gamma, const TensorType& beta) {
  if (!is_activation(x.dtype) || x.shape.rank() < 2) return expected("x [...,D] of f32 or bf16");
  if (!is_vector(gamma, x.shape.back()) || !is_vector(beta, x.shape.back())) return expected("gamma and beta f32[D]");
  return Types{x, {DType::f32, stats_shape(x.shape)}};
}

Inferred infer(const OpInput& in) { return infer_norm(in.operands[0], in.operands[1], in.operands[2]); }

Inferred infer_add(const OpInput& in) {
  if (in.operands[0] != in.operands[1]) return expected("x and d of one type");
  LANCET_ASSIGN(Types types, infer_norm(in.operands[0], in.operands[2], in.operands[3]));
  return Types{types[0], types[0], types[1]};
}

// Emits dx (plus dsum, the direct gradient of the residual sum, if any) and the gradients of gamma and beta.
void norm_gradient(GradientContext& g, TensorId x, int first_parameter, TensorId stats, TensorId dy, TensorId dsum,
                   std::initializer_list<int> inputs) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{dy, x, forward.operands[std::size_t(first_parameter)], stats};
  if (dsum.valid()) operands.push_back(dsum);
  const TensorId dx = g.emit("layer_norm_dx", operands, {}, ir::Role::dx)[0];
  for (int input : inputs)
    if (g.needs_gradient(input)) g.add(input, dx);
  emit_dw(g, "layer_norm_dw", {dy, x, stats}, {}, first_parameter, 2);
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  norm_gradient(g, forward.operands[0], 1, forward.results[1], g.result_gradient(0), {}, {0});
}

void gradient_add(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  norm_gradient(g, forward.results[0], 2, forward.results[2], g.result_gradient(1), g.result_gradient(0), {0, 1});
}

Work work(const OpInput& in) { return work_per_element(in, 8, 2); }
Work work_add(const OpInput& in) { return work_per_element(in, 9, 4); }
Work work_backward(const OpInput& in) { return work_per_element(in, 12, 3); }

Inferred infer_dx(const OpInput& in) {
  const TensorType &dy = in.operands[0], &x = in.operands[1];
  if (dy != x || !is_activation(x.dtype)) return expected("dy and x of one type");
  if (!is_vector(in.operands[2], x.shape.back())) return expected("gamma f32[D]");
  if (in.operands[3] != TensorType{DType::f32, stats_shape(x.shape)}) return expected("stats f32[...,2]");
  if (in.operands.size() > 4 && in.operands[4] != x) return expected("the sum's gradient like x");
  return Types{x};
}

Inferred infer_dw(const OpInput& in) {
  const TensorType &dy = in.operands[0], &x = in.operands[1];
  if (dy != x || !is_activation(x.dtype)) return expected("dy and x of one type");
  if (in.operands[2] != TensorType{DType::f32, stats_shape(x.shape)}) return expected("stats f32[...,2]");
  const TensorType d{DType::f32, {x.shape.back()}};
  if (in.operands.size() == 4) return expected("both accumulators or none");
  if (in.operands.size() > 4 && (in.operands[3] != d || in.operands[4] != d)) return expected("accumulators f32[D]");
  return Types{d, d};
}

const OpDef table[] = {
    {.name = "layer_norm",
     .required = 3,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, none, none}, {0, 0}}, {{1, none, none}, {1, 1}}},
     .samples = {{{f32({2, 4, 40}), f32({40}, Fill::positive), f32({40})}, {{"eps", 1e-5}}},
                 {{bf16({2, 6, 33}), f32({33}, Fill::positive), f32({33})}, {{"eps", 1e-5}}}},
     .again = Again{}},
    {.name = "add_layer_norm",
     .required = 4,
     .infer = infer_add,
     .gradient = gradient_add,
     .work = work_add,
     .partition = {{{0, 0, none, none}, {0, 0, 0}}, {{1, 1, none, none}, {1, 1, 1}}},
     .samples = {{{f32({4, 2, 40}), f32({4, 2, 40}), f32({40}, Fill::positive), f32({40})}, {{"eps", 1e-5}}},
                 {{bf16({2, 4, 16}), bf16({2, 4, 16}), f32({16}, Fill::positive), f32({16})}, {{"eps", 1e-5}}}},
     .again = Again{"layer_norm", {-1, 2, 3}, {1, 2}}},
    {.name = "layer_norm_dx",
     .required = 4,
     .most = 5,
     .infer = infer_dx,
     .work = work_backward,
     .partition = {{{0, 0, none, 0, 0}, {0}}, {{1, 1, none, 1, 1}, {1}}},
     .samples = {{{f32({2, 4, 40}), f32({2, 4, 40}), f32({40}), f32({2, 4, 2}, Fill::positive), f32({2, 4, 40})}, {}},
                 {{bf16({2, 4, 16}), bf16({2, 4, 16}), f32({16}), f32({2, 4, 2}, Fill::positive)}, {}}}},
    {.name = "layer_norm_dw",
     .required = 3,
     .most = 5,
     .infer = infer_dw,
     .work = work_backward,
     .aliases = {{0, 3}, {1, 4}},
     .partition = {{{0, 0, 0, accumulated, accumulated}, {accumulated, accumulated}, SplitIn::space},
                   {{1, 1, 1, accumulated, accumulated}, {accumulated, accumulated}, SplitIn::space}},
     .samples = {{{f32({2, 4, 40}), f32({2, 4, 40}), f32({2, 4, 2}, Fill::positive), f32({40}), f32({40})}, {}},
                 {{bf16({3, 4, 16}), bf16({3, 4, 16}), f32({3, 4, 2}, Fill::positive)}, {}}}},
};

}  // namespace

std::span<const OpDef> layer_norm_ops() { return table; }

}  // namespace lancet::ops
