// Layer norm over the last axis, alone and fused with the residual sum before it:
//   layer_norm(x, gamma, beta) -> y, stats            stats: mean and 1/standard deviation of each row, f32[...,2]
//   add_layer_norm(x, d, gamma, beta) -> x + d, layer_norm(x + d), stats      of the rounded sum, which backward reads
//   layer_norm_dx(dy, x, gamma, stats [, dsum]) -> dx
//   layer_norm_dw(dy, x, stats [, dgamma accumulator, dbeta accumulator]) -> dgamma, dbeta
// and RMS norm (Zhang and Sennrich, 2019), x / sqrt(mean of x^2 + eps) * gamma: rms_norm, add_rms_norm, rms_norm_dx,
// rms_norm_dw, the same without beta and mean, so that stats is f32[...,1].
#include "ops/describe.h"

namespace lancet::ops {
namespace {

constexpr bool centred = true;  // of layer norms

// Emits dx (plus dsum, the direct gradient of the residual sum, if any) and the gradients of gamma and beta.
void norm_gradient(GradientContext& g, bool is_centred, TensorId x, int first_parameter, TensorId stats, TensorId dy,
                   TensorId dsum, std::initializer_list<int> inputs) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{dy, x, forward.operands[std::size_t(first_parameter)], stats};
  if (dsum.valid()) operands.push_back(dsum);
  const TensorId dx = g.emit(is_centred ? "layer_norm_dx" : "rms_norm_dx", operands, {}, ir::Role::dx)[0];
  for (int input : inputs)
    if (g.needs_gradient(input)) g.add(input, dx);
  emit_dw(g, is_centred ? "layer_norm_dw" : "rms_norm_dw", {dy, x, stats}, {}, first_parameter, is_centred ? 2 : 1);
}

template <bool is_centred>
void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  norm_gradient(g, is_centred, forward.operands[0], 1, forward.results[1], g.result_gradient(0), {}, {0});
}

template <bool is_centred>
void gradient_add(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  norm_gradient(g, is_centred, forward.results[0], 2, forward.results[2], g.result_gradient(1), g.result_gradient(0),
                {0, 1});
}

Work work(const OpInput& in) { return work_per_element(in, 8, 2); }
Work work_add(const OpInput& in) { return work_per_element(in, 9, 4); }
Work work_backward(const OpInput& in) { return work_per_element(in, 12, 3); }

const OpDef table[] = {
    {.name = "layer_norm",
     .forms = {{"x[b,s,d] gamma:f32[d] beta:f32[d] -> y[b,s,d] stats:f32[b,s,2]", "b, s"}},
     .gradient = gradient<centred>,
     .work = work,
     .samples = {of("b=2 s=4 d=40 gamma=positive", {{"eps", 1e-5}}),
                 of("b=2 s=6 d=33 bf16 gamma=positive", {{"eps", 1e-5}})},
     .again = Again{}},
    {.name = "add_layer_norm",
     .forms = {{"x[b,s,d] d[b,s,d] gamma:f32[d] beta:f32[d] -> sum[b,s,d] y[b,s,d] stats:f32[b,s,2]", "b, s"}},
     .gradient = gradient_add<centred>,
     .work = work_add,
     .samples = {of("b=4 s=2 d=40 gamma=positive", {{"eps", 1e-5}}),
                 of("b=2 s=4 d=16 bf16 gamma=positive", {{"eps", 1e-5}})},
     .again = Again{"layer_norm", {-1, 2, 3}, {1, 2}}},
    {.name = "layer_norm_dx",
     .forms = {{"dy[b,s,d] x[b,s,d] gamma:f32[d] stats:f32[b,s,2] dsum?[b,s,d] -> dx[b,s,d]", "b, s"}},
     .work = work_backward,
     .samples = {of("b=2 s=4 d=40 stats=positive +dsum"), of("b=2 s=4 d=16 bf16 stats=positive")}},
    {.name = "layer_norm_dw",
     .forms = {{"dy[b,s,d] x[b,s,d] stats:f32[b,s,2] -> +dgamma:f32[d] +dbeta:f32[d]", "b space, s space"}},
     .work = work_backward,
     .samples = {of("b=2 s=4 d=40 stats=positive +dgamma +dbeta"), of("b=3 s=4 d=16 bf16 stats=positive")}},
    {.name = "rms_norm",
     .forms = {{"x[b,s,d] gamma:f32[d] -> y[b,s,d] stats:f32[b,s,1]", "b, s"}},
     .gradient = gradient<!centred>,
     .work = work,
     .samples = {of("b=2 s=4 d=40 gamma=positive", {{"eps", 1e-6}}),
                 of("b=2 s=6 d=33 bf16 gamma=positive", {{"eps", 1e-6}})},
     .again = Again{}},
    {.name = "add_rms_norm",
     .forms = {{"x[b,s,d] d[b,s,d] gamma:f32[d] -> sum[b,s,d] y[b,s,d] stats:f32[b,s,1]", "b, s"}},
     .gradient = gradient_add<!centred>,
     .work = work_add,
     .samples = {of("b=4 s=2 d=40 gamma=positive", {{"eps", 1e-6}}),
                 of("b=2 s=4 d=16 bf16 gamma=positive", {{"eps", 1e-6}})},
     .again = Again{"rms_norm", {-1, 2}, {1, 2}}},
    {.name = "rms_norm_dx",
     .forms = {{"dy[b,s,d] x[b,s,d] gamma:f32[d] stats:f32[b,s,1] dsum?[b,s,d] -> dx[b,s,d]", "b, s"}},
     .work = work_backward,
     .samples = {of("b=2 s=4 d=40 stats=positive +dsum"), of("b=2 s=4 d=16 bf16 stats=positive")}},
    {.name = "rms_norm_dw",
     .forms = {{"dy[b,s,d] x[b,s,d] stats:f32[b,s,1] -> +dgamma:f32[d]", "b space, s space"}},
     .work = work_backward,
     .samples = {of("b=2 s=4 d=40 stats=positive +dgamma"), of("b=3 s=4 d=16 bf16 stats=positive")}},
};

}  // namespace

std::span<const OpDef> layer_norm_ops() { return table; }

}  // namespace lancet::ops
