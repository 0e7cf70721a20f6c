// Token plus position embedding (GPT-2): x[b,s] = wte[tokens[b,s]] + wpe[s].
//   embedding(tokens i32[B,S], wte [V,D], wpe [P,D]) -> x [B,S,D]
//   embedding_dw(dx, tokens [, dw accumulator]) -> dw f32[V,D]
//   position_dw(dx [, dw accumulator]) -> dw f32[P,D]
// A table may be split by rows over ranks (Megatron-LM, section 3). Each rank then has the tokens of its rows: those of
// other ranks add zeros to x, and nothing to dw.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &tokens = in.operands[0], &wte = in.operands[1], &wpe = in.operands[2];
  if (tokens.dtype != DType::i32 || tokens.shape.rank() != 2) return expected("tokens i32[B,S]");
  if (!is_activation(wte.dtype) || wte.shape.rank() != 2) return expected("wte [V,D] of f32 or bf16");
  if (wpe.dtype != wte.dtype || wpe.shape.rank() != 2 || wpe.shape[1] != wte.shape[1] || wpe.shape[0] < tokens.shape[1])
    return expected("wpe [P,D] like wte, with P at least S");
  return Types{{wte.dtype, {tokens.shape[0], tokens.shape[1], wte.shape[1]}}};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  auto table = [&](int operand, std::string_view op, std::vector<TensorId> operands, const char* extent) {
    const std::int64_t rows = g.type(forward.operands[std::size_t(operand)]).shape[0];
    if (g.needs_gradient(operand)) emit_dw(g, op, std::move(operands), {{extent, rows}}, operand);
  };
  table(1, "embedding_dw", {g.result_gradient(0), forward.operands[0]}, "vocabulary");
  table(2, "position_dw", {g.result_gradient(0)}, "positions");
}

Work work(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements()) * double(in.operands[1].shape[1]);
  return {elements, 3 * elements * size_of(in.operands[1].dtype)};
}

Inferred infer_embedding_dw(const OpInput& in) {
  const TensorType &dx = in.operands[0], &tokens = in.operands[1];
  if (dx.shape.rank() != 3 || !is_activation(dx.dtype)) return expected("dx [B,S,D]");
  if (tokens != TensorType{DType::i32, {dx.shape[0], dx.shape[1]}}) return expected("tokens i32[B,S]");
  const TensorType dw{DType::f32, {in.attributes.integer("vocabulary"), dx.shape[2]}};
  if (in.operands.size() > 2 && in.operands[2] != dw) return expected("an accumulator like the result");
  return Types{dw};
}

Inferred infer_position_dw(const OpInput& in) {
  const TensorType& dx = in.operands[0];
  if (dx.shape.rank() != 3 || !is_activation(dx.dtype)) return expected("dx [B,S,D]");
  const TensorType dw{DType::f32, {in.attributes.integer("positions"), dx.shape[2]}};
  if (in.operands.size() > 1 && in.operands[1] != dw) return expected("an accumulator like the result");
  return Types{dw};
}

Work work_dw(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  return {elements, elements * (size_of(in.operands[0].dtype) + 8)};
}

const OpDef table[] = {
    {.name = "embedding",
     .required = 3,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .weights = {1, 2},
     .partition = {{{0, none, none}, {0}},
                   {{none, 1, 1}, {last}, SplitIn::space},
                   {{none, 0, once}, {partial}, SplitIn::space, {}, true}},
     .samples = {{{i32({2, 5}, Fill::tokens), f32({11, 24}), f32({7, 24})}, {{"vocabulary", 11}}},
                 {{i32({3, 5}, Fill::tokens), f32({12, 20}), f32({5, 20})}, {{"vocabulary", 12}}},
                 {{i32({4, 3}, Fill::tokens), bf16({5, 17}), bf16({3, 17})}, {{"vocabulary", 5}}}}},
    {.name = "embedding_dw",
     .required = 2,
     .most = 3,
     .infer = infer_embedding_dw,
     .work = work_dw,
     .aliases = {{0, 2}},
     .partition = {{{0, 0, accumulated}, {accumulated}, SplitIn::space},
                   {{last, none, 1}, {1}, SplitIn::space},
                   {{none, none, 0}, {0}, SplitIn::space, {"vocabulary"}, true}},
     .samples = {{{f32({2, 5, 24}), i32({2, 5}, Fill::tokens), f32({11, 24})}, {{"vocabulary", 11}}},
                 {{f32({3, 9, 20}), i32({3, 9}, Fill::tokens), f32({12, 20})}, {{"vocabulary", 12}}},
                 {{bf16({2, 9, 16}), i32({2, 9}, Fill::tokens)}, {{"vocabulary", 3}}}}},
    {.name = "position_dw",
     .required = 1,
     .most = 2,
     .infer = infer_position_dw,
     .work = work_dw,
     .aliases = {{0, 1}},
     .partition = {{{0, accumulated}, {accumulated}, SplitIn::space}, {{last, 1}, {1}, SplitIn::space}},
     .samples = {{{f32({3, 5, 24}), f32({7, 24})}, {{"positions", 7}}}, {{bf16({2, 4, 8})}, {{"positions", 4}}}}},
};

}  // namespace

std::span<const OpDef> embedding_ops() { return table; }

}  // namespace lancet::ops
