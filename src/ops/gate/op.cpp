// Top-1 gates: from router logits [B,S,E] to each token's expert and slot. A token gets the same slot in a part of a
// batch as in the whole batch.
//   switch_gate(logits [, counts of the part before]) (Fedus et al.): keeps tokens in their order. A part continues
//       where the part before ended.
//   batch_prioritized_gate (Riquelme et al.): keeps the tokens of the highest gate probabilities in the whole batch.
// The tokens of the whole batch form `groups` groups of neighbours, and an expert keeps at most `capacity` tokens of
// each group. The kept tokens of an expert get its slots in token order, group after group, so that a range of tokens
// fills a range of each expert's slots. Results, of T = B*S tokens with K = 1 choices each and G groups:
//   expert i32[T,K], slot i32[T,K] (-1: dropped), weight f32[T,K]: the choices, and the gate's probabilities of them
//   counts i32[G,E]: the tokens of each group that each expert keeps, those of the parts before included
//   filled i32[E,2]: the slots that the tokens fill: of each expert the first and the one after the last
//   probabilities f32[B,S,E]
//   load f32[2L,E]: the number of tokens that chose each expert and of those that were kept; of each of L runs of
//       `load_groups` neighbouring groups, or, without the attribute, of all groups together
#include <algorithm>
#include <cmath>

#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_gate(const OpInput& in) {
  const TensorType& logits = in.operands[0];
  if (logits.dtype != DType::f32 || logits.shape.rank() != 3) return expected("logits f32[B,S,E]");
  if (in.attributes.integer("capacity") < 1) return expected("a capacity of at least 1");
  const std::int64_t tokens = logits.shape.rows(), experts = logits.shape[2];
  const std::int64_t groups = in.attributes.integer("groups");
  if (groups < 1 || tokens * in.attributes.integer("parts", 1) % groups) return expected("groups of equal size");
  const std::int64_t load_groups = in.attributes.integer("load_groups", groups);
  if (load_groups < 1 || groups % load_groups) return expected("groups that load_groups divides");
  const TensorType choices{DType::i32, {tokens, 1}}, counts{DType::i32, {groups, experts}};
  if (in.operands.size() > 1 && in.operands[1] != counts) return expected("the counts i32[G,E] of the part before");
  return Types{choices,
               choices,
               {DType::f32, {tokens, 1}},
               counts,
               {DType::i32, {experts, 2}},
               logits,
               {DType::f32, {2 * (groups / load_groups), experts}}};
}

// The tokens of each load, if the gate's attributes say which groups share one.
Attributes attributes_of_loads(const Attributes& gate, const TensorType& expert) {
  if (!gate.has("load_groups")) return {};
  return {{"load_tokens", expert.shape[0] / gate.integer("groups") * gate.integer("load_groups")}};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{g.result_gradient(2), forward.results[0], forward.results[5]};
  if (const TensorId shared = g.result_gradient(5); shared.valid()) operands.push_back(shared);
  g.add(0, g.emit("gate_dx", operands, attributes_of_loads(forward.attributes, g.type(operands[1])), ir::Role::dx)[0]);
}

// gate_dx(dweight, expert, probabilities [, dprobability]): dweight f32[T,K] is the gradient of the chosen expert's
// probability, dprobability f32[L*E] that of all probabilities, the same for every token of each of L runs of
// neighbours (the auxiliary loss). Attribute load_tokens: the tokens of a run, if there are several.
Inferred infer_dx(const OpInput& in) {
  const TensorType &dweight = in.operands[0], &expert = in.operands[1], &probabilities = in.operands[2];
  if (probabilities.dtype != DType::f32 || probabilities.shape.rank() != 3) return expected("probabilities f32[B,S,E]");
  const Shape& p = probabilities.shape;
  if (dweight != TensorType{DType::f32, {p.rows(), 1}}) return expected("dweight f32[B*S,1]");
  if (!is_of_tokens(expert, p.rows())) return expected("expert i32[B*S,1]");
  if (in.operands.size() > 3) {
    const std::int64_t loads = in.operands[3].shape.elements() / p[2];
    if (!is_vector(in.operands[3], loads * p[2]) || !counts_tokens(in, loads, p.rows()))
      return expected("dprobability f32[L*E]");
  }
  return Types{probabilities};
}

Work work(const OpInput& in) { return work_per_element(in, 12, 2); }

// The sort by priority comes on top: T keys of 8 bytes, each read and written log2 T times, as std::sort does on the
// CPU. On a GPU it is two more kernels than the Switch gate has: one lists each expert's tokens, one selects among
// them.
Work prioritized_work(const OpInput& in) {
  Work all = work(in);
  const double tokens = double(in.operands[0].shape.rows());
  all.bytes += 2 * sizeof(std::uint64_t) * tokens * std::log2(std::max(tokens, 2.0));
  all.launches += 2;
  return all;
}

std::vector<Sample> gate_samples() {
  return {{{f32({2, 8, 4})}, {{"capacity", 5}, {"groups", 1}}},
          {{f32({4, 3, 5})}, {{"capacity", 1}, {"groups", 1}}},
          {{f32({2, 1, 3})}, {{"capacity", 4}, {"groups", 1}}},
          {{f32({4, 6, 3})}, {{"capacity", 4}, {"groups", 2}}},
          {{f32({8, 3, 4})}, {{"capacity", 1}, {"groups", 8}, {"load_groups", 2}}}};
}

// Shards have whole groups, and loads of their own, or summands of the one load.
const PartitionRow of_groups{{0}, {0, 0, 0, 0, partial, 0, 0}, SplitIn::space, {"groups"}};
const PartitionRow of_one_load{{0}, {0, 0, 0, 0, partial, 0, partial}, SplitIn::space, {"groups"}};

const OpDef table[] = {
    {.name = "switch_gate",
     .required = 1,
     .most = 2,
     .infer = infer_gate,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, irregular}, {0, 0, 0, cumulative, irregular, 0, partial}, SplitIn::time},
                   of_groups,
                   of_one_load},
     .samples = gate_samples(),
     .kind = Kind::gate,
     .continued = 3},
    {.name = "batch_prioritized_gate",
     .required = 1,
     .infer = infer_gate,
     .gradient = gradient,
     .work = prioritized_work,
     .partition = {of_groups, of_one_load},
     .samples = gate_samples(),
     .kind = Kind::gate},
    {.name = "gate_dx",
     .required = 3,
     .most = 4,
     .infer = infer_dx,
     .work = work,
     .partition = {{{0, 0, 0, none}, {0}}, {{0, 0, 0, 0}, {0}, SplitIn::space}},
     .samples = {{{f32({16, 1}), expert_of(16), f32({2, 8, 4}, Fill::positive), f32({4})},
                  {{"capacity", 8}, {"experts", 4}}},
                 {{f32({16, 1}), expert_of(16), f32({4, 4, 4}, Fill::positive), f32({16})},
                  {{"capacity", 8}, {"experts", 4}, {"load_tokens", 4}}}}},
};

}  // namespace

std::span<const OpDef> gate_ops() { return table; }

}  // namespace lancet::ops
