// pad_experts(expert i32[T,K], slot i32[T,K], filled i32[E,2]) {counts} -> expert i32[T,K], filled i32[E',2]: experts
// by their padded numbers (mesh/padded_experts.h), where the ranks along `expert` have unlike numbers of them. Padding
// has no filled slots. It stands behind the gate: routers and gates know the E experts alone, all ops between dispatch
// and combine work on E'. Attribute counts: the experts of each rank, "6,2". The slots say which of them a part of the
// tokens fills (split_filled).
#include "lancet/mesh/padded_experts.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &expert = in.operands[0], &filled = in.operands[2];
  const auto padded = mesh::parse_padded_experts(in.attributes.text("counts"));
  if (!padded) return expected("the unlike numbers of experts of several ranks");
  if (!is_of_tokens(expert) || in.operands[1] != expert) return expected("expert and slot i32[T,K]");
  std::int64_t experts = 0;
  for (const std::int64_t count : padded->counts()) experts += count;
  if (!is_filled(filled, experts)) return expected("filled i32[E,2] of as many experts as the counts have");
  return Types{expert, {filled.dtype, {padded->padded(experts), 2}}};
}

Work work(const OpInput& in) {
  return {0, 2 * double(ir::bytes(in.operands[0])) + 2 * double(ir::bytes(in.operands[2]))};
}

Sample sample_of(std::int64_t tokens, std::int64_t choices, std::int64_t groups, const char* counts) {
  return {{expert_of(tokens, choices), slot_of(tokens, choices), filled_of(4)},
          {{"capacity", tokens / groups}, {"groups", groups}, {"experts", 4}, {"counts", counts}}};
}

const OpDef table[] = {
    {.name = "pad_experts",
     .required = 3,
     .infer = infer,
     .work = work,
     .partition = {{{0, 0, irregular}, {0, irregular}, SplitIn::time}, {{0, 0, partial}, {0, partial}, SplitIn::space}},
     .samples = {sample_of(16, 1, 1, "3,1"), sample_of(24, 2, 1, "1,2,1"), sample_of(24, 3, 4, "1,3")},
     .ragged = Ragged{{}, {}, 2, 1}},
};

}  // namespace

std::span<const OpDef> pad_experts_ops() { return table; }

}  // namespace lancet::ops
