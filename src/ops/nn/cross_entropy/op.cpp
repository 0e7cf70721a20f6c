// Cross-entropy of logits [B,S,V'] with targets i32[B,S], over the first `vocabulary` columns (the rest is padding).
//   cross_entropy -> loss f32[1]
//   cross_entropy_train -> loss, dlogits in the memory of the logits, so that there is no second tensor of their size
// The loss is this rank's share of the mean over `total_tokens`, the tokens of the whole batch. A target of -1 adds
// nothing to it.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check_vocabulary(const OpInput& in, Types&) {
  const std::int64_t vocabulary = in.attributes.integer("vocabulary");
  if (vocabulary < 1 || vocabulary > in.operands[0].shape[2]) return expected("a vocabulary of 1 to v");
  return {};
}

void gradient(GradientContext& g) { g.add(0, g.instruction().results[1]); }

Work work(const OpInput& in) { return work_per_element(in, 8, 2); }

std::vector<Sample> samples() {
  return {of("b=2 s=4 v=24", {{"vocabulary", 21}, {"total_tokens", 16}}),
          of("b=2 s=1 v=8", {{"vocabulary", 8}, {"total_tokens", 2}}),
          of("b=2 s=4 v=32 bf16", {{"vocabulary", 32}, {"total_tokens", 8}})};
}

const OpDef table[] = {
    {.name = "cross_entropy",
     .forms = {{"logits[b,s,v] targets:i32[b,s] -> loss:f32[1]", "b, s"}},
     .check = check_vocabulary,
     .work = work,
     .samples = samples()},
    {.name = "cross_entropy_train",
     .forms = {{"logits[b,s,v] targets:i32[b,s] -> loss:f32[1] dlogits@logits[b,s,v]", "b, s space"}},
     .check = check_vocabulary,
     .gradient = gradient,
     .work = work,
     .samples = samples(),
     .kind = Kind::loss},
};

}  // namespace

std::span<const OpDef> cross_entropy_ops() { return table; }

}  // namespace lancet::ops
