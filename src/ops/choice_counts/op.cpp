// choice_counts(expert i32[T,K] [, accumulator]) {experts} -> f32[E]: how often each expert was chosen, before any
// capacity. Numbers are exact up to 2^24. It stands in the place of the gradient of a bias that balances the load
// (ops/sigmoid_top_k, ops/balance_bias), so that micro batches and ranks add up as those of any gradient do.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType counts{DType::f32, {in.attributes.integer("experts")}};
  if (!is_of_tokens(in.operands[0])) return expected("expert i32[T,K]");
  if (in.attributes.integer("experts") < 1) return expected("at least one expert");
  if (in.operands.size() > 1 && in.operands[1] != counts) return expected("an accumulator like the result");
  return Types{counts};
}

Work work(const OpInput& in) { return {0, double(ir::bytes(in.operands[0]))}; }

const OpDef table[] = {
    {.name = "choice_counts",
     .required = 1,
     .most = 2,
     .infer = infer,
     .work = work,
     .aliases = {{0, 1}},
     .partition = {{{0, accumulated}, {accumulated}, SplitIn::space}},
     .samples = {{{expert_of(16, 2), f32({4})}, {{"capacity", 8}, {"experts", 4}}},
                 {{expert_of(24)}, {{"capacity", 8}, {"experts", 7}}}}},
};

}  // namespace

std::span<const OpDef> choice_counts_ops() { return table; }

}  // namespace lancet::ops
