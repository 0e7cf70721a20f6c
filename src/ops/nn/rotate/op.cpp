// Rotary positions of q and k, in place of learned ones, with an RMSNorm of each of their heads before it if there are
// gammas (Qwen3's q_norm and k_norm). v passes through.
//   rotate(qkv [B,S,(G+1+1)*H*hd] [, q_gamma f32[hd], k_gamma f32[hd]]) {heads, group, head_dim, theta, eps, ...} -> y
//   rotate_at(qkv, cursor [, q_gamma, k_gamma]) -> y: the same for rows from position cursor[0] on (ops/nn/decode)
//   rotate_dx(dy [, qkv, q_gamma, k_gamma]) -> dqkv
//   rotate_dw(dy, qkv [, accumulators]) -> dq_gamma, dk_gamma: sums over all positions and heads
// Rows are at positions `before` (0 without), before + 1, ... along S. heads, group: as in attention; head_dim: hd,
// which is even. theta: the base of the angles; scaling: linear {factor}, yarn {factor,
// original_max_position_embeddings, beta_fast, beta_slow, attention_factor; the last three are 32, 1 and 0.1 ln factor
// + 1 without}, or llama3 {factor, original_max_position_embeddings, low_freq_factor, high_freq_factor}. rotation.h has
// the formulas. eps: of the norm, x / sqrt(mean(x^2) + eps) in f32, which is rounded to the type of x before gamma
// multiplies it.
#include "ops/describe.h"
#include "rotation.h"

namespace lancet::ops {
namespace {

Status check_angles(const Attributes& at) {
  if (const std::int64_t head_dim = at.integer("head_dim"); head_dim % 2 != 0 || head_dim / 2 > Angles::most)
    return expected(fmt::format("heads of an even number of features, at most {}", 2 * Angles::most));
  if (!(at.real("theta") > 1)) return expected("theta above 1");
  if (!at.has("scaling")) return {};
  const std::string& scaling = at.text("scaling");
  if (scaling != "linear" && scaling != "yarn" && scaling != "llama3")
    return expected("scaling linear, yarn or llama3");
  if (!(at.real("factor") >= 1)) return expected("a factor of at least 1");
  if (scaling == "linear") return {};
  if (!(at.real("original_max_position_embeddings") >= 1)) return expected("original positions");
  if (scaling == "yarn" && !(at.real("beta_fast", 32) >= at.real("beta_slow", 1) && at.real("beta_slow", 1) > 0))
    return expected("beta_fast of at least beta_slow, above 0");
  if (scaling == "llama3" && !(at.real("high_freq_factor") > at.real("low_freq_factor")))
    return expected("high_freq_factor above low_freq_factor");
  return {};
}

Status check_norm(const OpInput& in, std::size_t first) {
  if (in.operands.size() == first + 1) return expected("gammas of q and of k, or none");
  if (in.operands.size() > first && !(in.attributes.real("eps") >= 0)) return expected("eps of at least 0");
  return {};
}

Status check(const OpInput& in, Types&) {
  LANCET_TRY(check_norm(in, 1));
  return check_angles(in.attributes);
}
Status check_at(const OpInput& in, Types&) {
  LANCET_TRY(check_norm(in, 2));
  return check_angles(in.attributes);
}
Status check_dx(const OpInput& in, Types&) {
  if (in.operands.size() != 1 && in.operands.size() != 4) return expected("qkv and both gammas, or none of them");
  LANCET_TRY(check_norm(in, 2));
  return check_angles(in.attributes);
}
Status check_dw(const OpInput& in, Types&) {
  if (!(in.attributes.real("eps") >= 0)) return expected("eps of at least 0");
  return check_angles(in.attributes);
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const TensorId dy = g.result_gradient(0), qkv = forward.operands[0];
  std::vector<TensorId> operands = forward.operands;
  if (operands.size() == 1) operands.clear();
  operands.insert(operands.begin(), dy);
  g.add(0, g.emit("rotate_dx", operands, forward.attributes, ir::Role::dx)[0]);
  if (operands.size() > 1) emit_dw(g, "rotate_dw", {dy, qkv}, forward.attributes, 1, 2);
}

Work work(const OpInput& in) { return work_per_element(in, 6, 2); }
Work work_dx(const OpInput& in) { return work_per_element(in, 12, in.operands.size() > 1 ? 3 : 2); }
Work work_dw(const OpInput& in) { return work_per_element(in, 8, 2); }

const Attributes plain{{"theta", 10000}}, norm{{"theta", 1e6}, {"eps", 1e-6}},
    linear{{"theta", 10000}, {"scaling", "linear"}, {"factor", 4}},
    yarn{{"theta", 10000}, {"scaling", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 64}},
    llama3{{"theta", 5e5},         {"scaling", "llama3"},  {"factor", 8}, {"original_max_position_embeddings", 64},
           {"low_freq_factor", 1}, {"high_freq_factor", 4}};

Attributes behind(Attributes attributes) {
  attributes.set("before", std::int64_t(11));
  return attributes;
}
Attributes at(Attributes attributes) {
  attributes.set("vocabulary", std::int64_t(5));  // of the samples' cursor
  return attributes;
}

const OpDef table[] = {
    {.name = "rotate",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*@head_dim] q_gamma?:f32[@head_dim] k_gamma?:f32[@head_dim] -> "
                "y[b,s,(@group?+1+1)*@heads*@head_dim]",
                "b, @heads space"}},
     .check = check,
     .gradient = gradient,
     .work = work,
     .positions = PositionParts{.before = true},
     .samples = {of("b=2 s=5 @heads=4 @head_dim=6", plain), of("b=4 s=3 @heads=2 @group=2 @head_dim=64 bf16", linear),
                 of("b=1 s=7 @heads=1 @group=4 @head_dim=80", behind(yarn)),
                 of("b=2 s=9 @heads=2 @group=3 @head_dim=34 bf16", llama3),
                 of("b=2 s=5 @heads=2 @group=2 @head_dim=10 +q_gamma +k_gamma q_gamma=positive k_gamma=positive", norm),
                 of("b=2 s=3 @heads=4 @head_dim=128 bf16 +q_gamma +k_gamma q_gamma=positive k_gamma=positive", norm)},
     .again = Again{}},
    {.name = "rotate_at",
     .forms = {{"qkv[b,s,(@group?+1+1)*@heads*@head_dim] cursor:i32[2] q_gamma?:f32[@head_dim] "
                "k_gamma?:f32[@head_dim] -> "
                "y[b,s,(@group?+1+1)*@heads*@head_dim]",
                "@heads space"}},
     .check = check_at,
     .work = work,
     .samples = {of("b=4 s=5 @heads=4 @head_dim=6", at(plain)),
                 of("b=1 s=1 @heads=2 @group=2 @head_dim=80 bf16", at(yarn)),
                 of("b=2 s=3 @heads=2 @group=2 @head_dim=10 +q_gamma +k_gamma q_gamma=positive k_gamma=positive",
                    at(norm))}},
    {.name = "rotate_dx",
     .forms = {{"dy[b,s,(@group?+1+1)*@heads*@head_dim] qkv?[b,s,(@group?+1+1)*@heads*@head_dim] "
                "q_gamma?:f32[@head_dim] k_gamma?:f32[@head_dim] -> "
                "dqkv[b,s,(@group?+1+1)*@heads*@head_dim]",
                "b, @heads space"}},
     .check = check_dx,
     .work = work_dx,
     .positions = PositionParts{.before = true},
     .samples =
         {of("b=2 s=5 @heads=4 @head_dim=6", plain), of("b=4 s=3 @heads=2 @group=2 @head_dim=64 bf16", behind(yarn)),
          of("b=2 s=5 @heads=2 @group=2 @head_dim=10 +qkv +q_gamma +k_gamma q_gamma=positive k_gamma=positive", norm),
          of("b=2 s=3 @heads=4 @head_dim=128 bf16 +qkv +q_gamma +k_gamma q_gamma=positive k_gamma=positive", norm)}},
    {.name = "rotate_dw",
     .forms = {{"dy[b,s,(@group?+1+1)*@heads*@head_dim] qkv[b,s,(@group?+1+1)*@heads*@head_dim] -> "
                "+dq_gamma:f32[@head_dim] +dk_gamma:f32[@head_dim]",
                "b space, @heads space"}},
     .check = check_dw,
     .work = work_dw,
     .samples = {of("b=2 s=5 @heads=2 @group=2 @head_dim=10 +dq_gamma +dk_gamma", norm),
                 of("b=4 s=3 @heads=4 @head_dim=128 bf16", norm), of("b=1 s=7 @heads=1 @group=4 @head_dim=80", norm)}},
};

}  // namespace

std::span<const OpDef> rotate_ops() { return table; }

}  // namespace lancet::ops
