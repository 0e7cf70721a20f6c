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
#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool is_load(const TensorType& load) {
  return load.dtype == DType::f32 && load.shape.rank() == 2 && load.shape[0] > 0 && load.shape[0] % 2 == 0;
}

Inferred infer(const OpInput& in) {
  const TensorType &probabilities = in.operands[0], &load = in.operands[1];
  if (probabilities.dtype != DType::f32 || probabilities.shape.rank() != 3) return expected("probabilities f32[B,S,E]");
  if (!is_load(load) || load.shape[1] != probabilities.shape[2] ||
      !counts_tokens(in, load.shape[0] / 2, probabilities.shape.rows()))
    return expected("load f32[2L,E]");
  return Types{{DType::f32, {2}}};
}

// aux_loss_dx(load) -> d loss / d probability, f32[L*E], the same for every token of a run:
// coefficient * E * f_e / total_tokens.
Inferred infer_dx(const OpInput& in) {
  const TensorType& load = in.operands[0];
  if (!is_load(load)) return expected("load f32[2L,E]");
  return Types{{DType::f32, {load.shape[0] / 2 * load.shape[1]}}};
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
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     // Not in time: it would need the load of all parts before the first one's scores are of use.
     .partition = {{{0, none}, {partial}, SplitIn::space}, {{0, 0}, {partial}, SplitIn::space}},
     .samples = {{{f32({2, 8, 4}, Fill::positive), f32({2, 4}, Fill::load)}, sample_loads(1)},
                 {{f32({4, 4, 4}, Fill::positive), f32({8, 4}, Fill::load)}, sample_loads(4)},
                 {{f32({4, 4, 4}, Fill::positive), f32({8, 4}, Fill::load)}, sample_loads(4, 2)},
                 {{f32({2, 8, 4}, Fill::positive), f32({2, 4}, Fill::load)}, with_mean_choices(sample_loads(1), 1.5)}},
     .is_loss = true},
    {.name = "aux_loss_dx",
     .required = 1,
     .infer = infer_dx,
     .work = work,
     .partition = {{{0}, {0}, SplitIn::space}},
     .samples = {{{f32({2, 4}, Fill::load)}, sample_loads(1)},
                 {{f32({8, 4}, Fill::load)}, sample_loads(4)},
                 {{f32({2, 4}, Fill::load)}, sample_loads(1, 3)}}},
};

}  // namespace

std::span<const OpDef> aux_loss_ops() { return table; }

}  // namespace lancet::ops
