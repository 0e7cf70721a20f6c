// RMSNorm of q over all of its features, and of k over all of its (OLMoE's q_norm and k_norm), and then the limit of q,
// k and v to [-clip, clip] (its clip_qkv).
//   wide_norm_squares(qkv [B,S,(G+1+1)*H*hd]) {heads, group, head_dim} -> squares f32[B,S,2]: the sums of the squares
//       of q and of k in each row
//   wide_norm(qkv, q_gamma f32[G*H*hd], k_gamma f32[H*hd], squares) {heads, group, head_dim, all_heads, eps, clip} ->
//   y:
//       x / sqrt(mean(x^2) + eps), rounded to the type of x, times gamma; v as it is. Without `clip` there is no limit.
//   wide_norm_dx(dy, qkv, q_gamma, k_gamma, squares) -> dqkv with squares as a constant, dsquares f32[B,S,2]
//   wide_norm_dw(dy, qkv, q_gamma, k_gamma, squares [, accumulators]) -> dq_gamma, dk_gamma
//   wide_norm_squares_dx(dsquares, qkv) -> dqkv
// Shards along the heads have the sums of their own features, which add up to the row's. So squares and dsquares are
// tensors of their own: they are what `tensor` sums in both passes. all_heads: the heads of keys on all shards.
#include "ops/describe.h"
#include "wide_heads.h"

namespace lancet::ops {
namespace {

Status check(const OpInput& in, Types&) {
  const Attributes& at = in.attributes;
  if (at.integer("all_heads") < at.integer("heads")) return expected("all_heads of at least heads");
  if (!(at.real("eps") >= 0) || !(at.real("clip", 0) >= 0)) return expected("eps and clip of at least 0");
  return {};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands = forward.operands;
  operands.insert(operands.begin(), g.result_gradient(0));
  const auto results = g.emit("wide_norm_dx", operands, forward.attributes, ir::Role::dx);
  g.add(0, results[0]);
  g.add(3, results[1]);
  emit_dw(g, "wide_norm_dw", operands, forward.attributes, 1, 2);
}

void gradient_squares(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0, g.emit("wide_norm_squares_dx", {g.result_gradient(0), forward.operands[0]}, forward.attributes,
                  ir::Role::dx)[0]);
}

Work work_squares(const OpInput& in) { return work_per_element(in, 2, 1); }
Work work(const OpInput& in) { return work_per_element(in, 4, 2); }
Work work_dx(const OpInput& in) { return work_per_element(in, 10, 3); }
Work work_dw(const OpInput& in) { return work_per_element(in, 6, 2); }
Work work_squares_dx(const OpInput& in) {
  const double elements = double(in.operands[1].shape.elements());
  return {elements, 2 * elements * size_of(in.operands[1].dtype)};
}

const Attributes of_four{{"all_heads", 4}, {"eps", 1e-5}}, of_two{{"all_heads", 2}, {"eps", 1e-5}, {"clip", 1.5}};

const OpDef table[] = {
    {.name = "wide_norm_squares",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*@head_dim] -> squares:f32[b,s,2]", "b, s, @heads space"}},
     .gradient = gradient_squares,
     .work = work_squares,
     .samples = {of("b=2 s=5 @heads=4 @head_dim=6"), of("b=4 s=2 @heads=2 @group=2 @head_dim=32 bf16")},
     .again = Again{}},
    {.name = "wide_norm_squares_dx",
     .forms = {{"dsquares:f32[b,s,2] qkv[b,s,(@group?+1+1)*@heads*@head_dim] -> "
                "dqkv[b,s,(@group?+1+1)*@heads*@head_dim]",
                "b, s, @heads space"}},
     .work = work_squares_dx,
     .samples = {of("b=2 s=5 @heads=4 @head_dim=6"), of("b=4 s=2 @heads=2 @group=2 @head_dim=32 bf16")}},
    {.name = "wide_norm",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*@head_dim] q_gamma:f32[@heads*@group?*@head_dim] "
                "k_gamma:f32[@heads*@head_dim] squares:f32[b,s,2] -> y[b,s,(@group?+1+1)*@heads*@head_dim]",
                "b, s, @heads space"}},
     .check = check,
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=5 @heads=4 @head_dim=6 squares=positive", of_four),
                 of("b=4 s=2 @heads=2 @group=2 @head_dim=32 bf16 squares=positive", of_two)},
     .again = Again{}},
    {.name = "wide_norm_dx",
     .forms = {{"dy[b,s,(@group?+1+1)*@heads*@head_dim] qkv[b,s,(@group?+1+1)*@heads*@head_dim] "
                "q_gamma:f32[@heads*@group?*@head_dim] k_gamma:f32[@heads*@head_dim] squares:f32[b,s,2] -> "
                "dqkv[b,s,(@group?+1+1)*@heads*@head_dim] dsquares:f32[b,s,2]",
                "b, s, @heads space"}},
     .check = check,
     .work = work_dx,
     .samples = {of("b=2 s=5 @heads=4 @head_dim=6 squares=positive", of_four),
                 of("b=4 s=2 @heads=2 @group=2 @head_dim=32 bf16 squares=positive", of_two)}},
    {.name = "wide_norm_dw",
     .forms = {{"dy[b,s,(@group?+1+1)*@heads*@head_dim] qkv[b,s,(@group?+1+1)*@heads*@head_dim] "
                "q_gamma:f32[@heads*@group?*@head_dim] k_gamma:f32[@heads*@head_dim] squares:f32[b,s,2] -> "
                "+dq_gamma:f32[@heads*@group?*@head_dim] +dk_gamma:f32[@heads*@head_dim]",
                "b space, s space, @heads space"}},
     .check = check,
     .work = work_dw,
     .samples = {of("b=2 s=5 @heads=4 @head_dim=6 squares=positive +dq_gamma +dk_gamma", of_four),
                 of("b=4 s=2 @heads=2 @group=2 @head_dim=32 bf16 squares=positive", of_two)}},
};

}  // namespace

std::span<const OpDef> wide_norm_ops() { return table; }

}  // namespace lancet::ops
