// choice_counts(expert i32[T,K] [, accumulator]) {experts} -> f32[E]: how often each expert was chosen, before any
// capacity. Numbers are exact up to 2^24. It stands in the place of the gradient of a bias that balances the load
// (ops/moe/sigmoid_top_k, ops/optim/update), so that micro batches and ranks add up as those of any gradient do.
//
// first_choices(expert i32[T,K]) {experts [, load_tokens]} -> f32[2L,E]: how many tokens have each expert as their
// first choice, and how many as another one, of each of L runs of load_tokens neighbouring tokens, or, without the
// attribute, of all together. It has the layout of a gate's load, in whose place the auxiliary loss takes it: GShard's
// c_e counts first choices, kept or not (algorithm 1).
//
// They are two ops with one kernel, because their results split along other axes: the rows of partition belong to an
// op, whatever its attributes are. A gate's load (ops/moe/slots) is no third one, since it counts what the gate keeps.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_first(const OpInput& in) {
  const TensorType& expert = in.operands[0];
  if (!is_of_tokens(expert)) return expected("expert i32[T,K]");
  const std::int64_t tokens = expert.shape[0], of_load = in.attributes.integer("load_tokens", tokens);
  if (of_load < 1 || tokens % of_load != 0) return expected("load_tokens that divide the tokens");
  return Types{{DType::f32, {2 * (tokens / of_load), in.attributes.integer("experts")}}};
}

Work work(const OpInput& in) { return {0, double(ir::bytes(in.operands[0]))}; }

Sample sample_first(std::int64_t tokens, std::int64_t choices, std::int64_t loads) {
  Sample sample{{expert_of(tokens, choices)}, {{"experts", 4}, {"capacity", tokens}}};
  if (loads > 1) sample.attributes.set("load_tokens", tokens / loads);
  return sample;
}

const OpDef table[] = {
    {.name = "choice_counts",
     .forms = {{"expert:i32[t,k] -> +counts:f32[@experts]", "t space"}},
     .work = work,
     .samples = {of("t=16 k=2 @experts=4 +counts", {{"capacity", 8}}), of("t=24 k=1 @experts=7", {{"capacity", 8}})}},
    {.name = "first_choices",
     .required = 1,
     .infer = infer_first,
     .work = work,
     // Not in time: the auxiliary loss needs the counts of all parts.
     .partition = {{{0}, {0}, SplitIn::space}, {{0}, {partial}, SplitIn::space}},
     .samples = {sample_first(16, 2, 1), sample_first(16, 2, 4), sample_first(24, 1, 2), sample_first(15, 3, 1)}},
};

}  // namespace

std::span<const OpDef> choice_counts_ops() { return table; }

}  // namespace lancet::ops
