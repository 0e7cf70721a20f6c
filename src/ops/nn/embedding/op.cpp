// Token plus position embedding (GPT-2): x[b,s] = wte[tokens[b,s]] + wpe[before + s], or without wpe. before: 0 without
// the attribute.
//   embedding(tokens i32[B,S], wte [V,D] [, wpe [P,D]]) -> x [B,S,D]
//   embedding_dw(dx, tokens [, dw accumulator]) -> dw f32[V,D]
//   position_dw(dx [, dw accumulator]) -> dw f32[P,D]
// A table may be split by rows over ranks (Megatron-LM, section 3). Each rank then has the tokens of its rows: those of
// other ranks add zeros to x, and nothing to dw.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check_positions(const OpInput& in, Types&) {
  const std::int64_t before = in.attributes.integer("before", 0);
  if (before < 0) return expected("before of at least 0");
  if (in.operands.size() > 2 && in.operands[2].shape[0] - before < in.operands[0].shape[1])
    return expected("wpe[p,d] with p at least before + s");
  return {};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  auto table = [&](int operand, std::string_view op, std::vector<TensorId> operands, const char* extent) {
    const std::int64_t rows = g.type(forward.operands[std::size_t(operand)]).shape[0];
    if (g.needs_gradient(operand)) emit_dw(g, op, std::move(operands), {{extent, rows}}, operand);
  };
  table(1, "embedding_dw", {g.result_gradient(0), forward.operands[0]}, "vocabulary");
  if (forward.operands.size() > 2) table(2, "position_dw", {g.result_gradient(0)}, "positions");
}

Work work(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements()) * double(in.operands[1].shape[1]);
  return {elements, 3 * elements * size_of(in.operands[1].dtype)};
}

Work work_dw(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  return {elements, elements * (size_of(in.operands[0].dtype) + 8)};
}

const OpDef table[] = {
    {.name = "embedding",
     .forms = {{"tokens:i32[b,s] wte[v,d] wpe?[p,d] -> x[b,s,d]", "b, d space, v placed wpe=once"}},
     .check = check_positions,
     .gradient = gradient,
     .work = work,
     .weights = {1, 2},
     .positions = PositionParts{.before = true},
     .samples = {of("b=2 s=5 v=11 p=7 d=24 +wpe", {{"vocabulary", 11}}),
                 of("b=3 s=5 v=12 p=5 d=20 +wpe", {{"vocabulary", 12}}),
                 of("b=4 s=3 v=5 p=3 d=17 bf16 +wpe", {{"vocabulary", 5}}),
                 of("b=3 s=4 v=12 d=20", {{"vocabulary", 12}})}},
    {.name = "embedding_dw",
     .forms = {{"dx[b,s,d] tokens:i32[b,s] -> +dw:f32[@vocabulary,d]", "b space, d space, @vocabulary placed"}},
     .work = work_dw,
     .samples = {of("b=2 s=5 d=24 @vocabulary=11 +dw"), of("b=3 s=9 d=20 @vocabulary=12 +dw"),
                 of("b=2 s=9 d=16 @vocabulary=3 bf16")}},
    {.name = "position_dw",
     .forms = {{"dx[b,s,d] -> +dw:f32[@positions,d]", "b space, d space"}},
     .work = work_dw,
     .samples = {of("b=3 s=5 d=24 @positions=7 +dw"), of("b=2 s=4 d=8 @positions=4 bf16")}},
};

}  // namespace

std::span<const OpDef> embedding_ops() { return table; }

}  // namespace lancet::ops
