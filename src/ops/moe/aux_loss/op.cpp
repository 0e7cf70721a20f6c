// The Switch Transformer's load-balancing loss: E * sum over experts of f_e * P_e, where f_e is the fraction of all
// choices that are of e (load, without gradient) and P_e is the mean probability of e: 1 if all is even, whatever the
// number K of a token's choices. (Mixtral's code sums the f_e up to K, so that its loss is K times as large.) The
// second result is the entropy of the router, the mean over tokens of -sum over experts of p log p, in nats: from 0
// (certain) to log E (even), without gradient. The result f32[2], loss and entropy, is this rank's share; the sum over
// ranks is that of the layer.
// Tokens may have several loads, f32[2L,E]: each of L runs of neighbouring tokens has its own f_e, and the loss is the
// sum over the runs. Attributes: load_tokens, the number of tokens that a load counts; choices, K (1 if absent), which
// is no whole number where experts choose and K is a mean; total_tokens, the number of tokens of the whole batch;
// coefficient, the weight of the loss in the objective, which the result does not include.
//
// mean_load(&sum, load) -> mean adds the load of a micro batch to the sum over those of the step before it, and divides
// by their number. So f counts the step's micro batches up to this one (Qiu et al., Demons in the Detail, 2025, with
// the buffer of Megatron's global_aux_loss). Micro batches have as many choices each: their number is the ratio of the
// choices of all experts in the sum to those in the load. The mean of a single load is that load, to the bit.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check_loads(const OpInput& in, Types&) {
  if (!counts_tokens(in, in.operands[1].shape[0] / 2, in.operands[0].shape.rows()))
    return expected("load f32[2L,E] of load_tokens");
  return {};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  if (forward.attributes.real("coefficient") == 0) return;
  g.add(0, g.emit("aux_loss_dx", {forward.operands[1]}, forward.attributes, ir::Role::dx)[0]);
}

// Dominated by a logarithm per probability.
Work work(const OpInput& in) { return {20 * double(in.operands[0].shape.elements()), bytes_of(in)}; }

Attributes with_mean_choices(Attributes attributes, double mean) {
  attributes.set("choices", mean);
  return attributes;
}

Attributes sample_loads(std::int64_t loads, std::int64_t choices = 1) {
  Attributes attributes{
      {"capacity", 8}, {"tokens", 16}, {"load_tokens", 16 / loads}, {"total_tokens", 32}, {"coefficient", 0.5}};
  if (choices > 1) attributes.set("choices", choices);
  if (loads == 1) return attributes;
  attributes.set("groups", loads);
  attributes.set("load_groups", std::int64_t(1));
  return attributes;
}

const OpDef table[] = {
    {.name = "aux_loss",
     // Not in time: it would need the load of all parts before the first one's scores are of use.
     .forms = {{"probabilities:f32[b,s,e] load:f32[l*2,e] -> loss:f32[2]", "b space, b+l space"}},
     .check = check_loads,
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=8 e=4 l=1 probabilities=positive", sample_loads(1)),
                 of("b=4 s=4 e=4 l=4 probabilities=positive", sample_loads(4)),
                 of("b=4 s=4 e=4 l=4 probabilities=positive", sample_loads(4, 2)),
                 of("b=2 s=8 e=4 l=1 probabilities=positive", with_mean_choices(sample_loads(1), 1.5))},
     .kind = Kind::loss},
    {.name = "aux_loss_dx",
     .forms = {{"load:f32[l*2,e] -> dscores:f32[l*e]", "l space"}},
     .work = work,
     .samples = {of("l=1 e=4", sample_loads(1)), of("l=4 e=4", sample_loads(4)), of("l=1 e=4", sample_loads(1, 3))}},
    // Not in parts, which are no micro batches, nor in shards, whose choices need not be as many.
    {.name = "mean_load",
     .forms = {{"&sum:f32[2,e] load:f32[2,e] -> mean:f32[2,e]"}},
     .samples = {of("e=4 sum=zero", {{"capacity", 8}, {"tokens", 16}}),
                 of("e=7 sum=positive", {{"capacity", 8}, {"tokens", 16}})}},
};

}  // namespace

std::span<const OpDef> aux_loss_ops() { return table; }

}  // namespace lancet::ops
