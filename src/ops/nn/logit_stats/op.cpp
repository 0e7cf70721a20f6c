// Cross-entropy of logits whose columns are split over ranks: the ranks send each other two numbers a token and
// block of columns instead of the logits (vocabulary-parallel loss, Megatron-LM, section 3).
//   logit_stats(logits [B,S,V'], targets i32[B,S]) {vocabulary, blocks} -> stats f32[blocks,B,S,2]: by block of V' /
//       blocks columns, the logarithm of the sum of e^logit, and the target's logit, 0 in blocks without the target
//   loss_of_stats(stats, targets) {total_tokens} -> loss f32[1], dstats f32[blocks,B,S,2]
//   logit_stats_dx(dstats, logits, targets, stats) {vocabulary} -> dlogits in the memory of the logits
// Only the first `vocabulary` columns count, the others are padding: a block of padding alone has a sum of 0, whose
// logarithm is -infinity. The loss is this rank's share of the mean over `total_tokens`, as that of cross_entropy; a
// target of -1 adds nothing to it.
//
// The logarithm of the whole sum is that of the sum of e^(logarithm of a block's sum); its derivative with respect to
// the latter is the block's share of the probability, and with respect to the target's logit -1. Both are factors of
// what a block finds by itself, so that the gradient needs no message.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check(const OpInput& in, const TensorType& logits, std::int64_t blocks) {
  if (blocks < 1 || logits.shape[2] % blocks != 0) return expected("a number of blocks that divides v");
  if (in.attributes.integer("vocabulary") < 1) return expected("a vocabulary of at least 1");
  return {};
}
Status check_blocks(const OpInput& in, Types&) { return check(in, in.operands[0], in.attributes.integer("blocks")); }
Status check_blocks_dx(const OpInput& in, Types&) { return check(in, in.operands[1], in.operands[0].shape[0]); }

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  g.add(0,
        g.emit("logit_stats_dx", {g.result_gradient(0), forward.operands[0], forward.operands[1], forward.results[0]},
               {{"vocabulary", forward.attributes.integer("vocabulary")}}, ir::Role::dx)[0]);
}

void gradient_of_loss(GradientContext& g) { g.add(0, g.instruction().results[1]); }

Work work(const OpInput& in) { return work_per_element(in, 4, 1); }
Work work_dx(const OpInput& in) {
  const double logits = double(in.operands[1].shape.elements());
  return {4 * logits, 2 * logits * size_of(in.operands[1].dtype)};
}
Work work_loss(const OpInput& in) { return work_per_element(in, 8, 3); }

const OpDef table[] = {
    {.name = "logit_stats",
     .forms = {{"logits[b,s,v] targets:i32[b,s] -> stats:f32[@blocks,b,s,2]", "b space, s space, v+@blocks placed"}},
     .check = check_blocks,
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=4 v=24 @blocks=4", {{"vocabulary", 21}}), of("b=2 s=1 v=9 @blocks=1", {{"vocabulary", 9}}),
                 of("b=2 s=4 v=32 @blocks=2 bf16", {{"vocabulary", 32}})}},
    {.name = "logit_stats_dx",
     .forms = {{"dstats:f32[n,b,s,2] logits[b,s,v] targets:i32[b,s] stats:f32[n,b,s,2] -> dlogits@logits[b,s,v]",
                "b space, s space, n+v placed"}},
     .check = check_blocks_dx,
     .work = work_dx,
     .samples = {of("n=4 b=2 s=4 v=24", {{"vocabulary", 21}}), of("n=1 b=2 s=1 v=9", {{"vocabulary", 9}}),
                 of("n=2 b=2 s=4 v=32 bf16", {{"vocabulary", 32}})}},
    {.name = "loss_of_stats",
     .forms = {{"stats:f32[n,b,s,2] targets:i32[b,s] -> loss:f32[1] dstats:f32[n,b,s,2]", "b space, s space"}},
     .gradient = gradient_of_loss,
     .work = work_loss,
     .samples = {of("n=4 b=2 s=4", {{"vocabulary", 16}, {"total_tokens", 16}}),
                 of("n=1 b=4 s=3", {{"vocabulary", 16}, {"total_tokens", 12}})},
     .kind = Kind::loss},
};

}  // namespace

std::span<const OpDef> logit_stats_ops() { return table; }

}  // namespace lancet::ops
