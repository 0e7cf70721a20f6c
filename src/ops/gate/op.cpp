// Top-1 gates: from router logits [B,S,E] to each token's expert and slot. A token gets the same slot in a part of a
// batch as in the whole batch.
//   switch_gate(logits [, route of the part before]) (Fedus et al.): slots in token order. A part begins where the part
//       before ended.
//   batch_prioritized_gate (Riquelme et al.): keeps the tokens of the highest gate probabilities in the whole batch.
//       They too get their slots in token order, so that a range of tokens owns a range of each expert's slots.
// Results: route[T,E]; probabilities f32[B,S,E]; load f32[2,E], the number of tokens that chose each expert and of
// those that were kept.
#include <algorithm>
#include <cmath>

#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_gate(const OpInput& in) {
  const TensorType& logits = in.operands[0];
  if (logits.dtype != DType::f32 || logits.shape.rank() != 3) return expected("logits f32[B,S,E]");
  if (in.attributes.integer("capacity") < 1) return expected("a capacity of at least 1");
  const std::int64_t experts = logits.shape[2];
  if (in.operands.size() > 1 && (in.operands[1].dtype != DType::route || in.operands[1].shape[1] != experts))
    return expected("the route of the part before");
  return Types{{DType::route, {logits.shape.rows(), experts}}, logits, {DType::f32, {2, experts}}};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{g.result_gradient(0), forward.results[0], forward.results[1]};
  if (const TensorId shared = g.result_gradient(1); shared.valid()) operands.push_back(shared);
  g.add(0, g.emit("gate_dx", operands, {}, ir::Role::dx)[0]);
}

// gate_dx(dweight, route, probabilities [, dprobability]): dweight f32[B,S] is the gradient of the chosen expert's
// probability, dprobability f32[E] that of all probabilities, the same for every token (the auxiliary loss).
Inferred infer_dx(const OpInput& in) {
  const TensorType &dweight = in.operands[0], &route = in.operands[1], &probabilities = in.operands[2];
  if (probabilities.dtype != DType::f32 || probabilities.shape.rank() != 3) return expected("probabilities f32[B,S,E]");
  const Shape& p = probabilities.shape;
  if (dweight != TensorType{DType::f32, {p[0], p[1]}}) return expected("dweight f32[B,S]");
  if (route != TensorType{DType::route, {p.rows(), p[2]}}) return expected("route[B*S,E]");
  if (in.operands.size() > 3 && !is_vector(in.operands[3], p[2])) return expected("dprobability f32[E]");
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
  return {{{f32({2, 8, 4})}, {{"capacity", 5}}},
          {{f32({4, 3, 5})}, {{"capacity", 1}}},
          {{f32({2, 1, 3})}, {{"capacity", 4}}}};
}

const OpDef table[] = {
    {.name = "switch_gate",
     .required = 1,
     .most = 2,
     .infer = infer_gate,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, irregular}, {irregular, 0, partial}}},
     .samples = gate_samples(),
     .sequential_parts = true},
    {.name = "batch_prioritized_gate",
     .required = 1,
     .infer = infer_gate,
     .gradient = gradient,
     .work = prioritized_work,
     .samples = gate_samples()},
    {.name = "gate_dx",
     .required = 3,
     .most = 4,
     .infer = infer_dx,
     .work = work,
     .partition = {{{0, irregular, 0, none}, {0}}},
     .samples = {{{f32({2, 8}), route({16, 4}), f32({2, 8, 4}, Fill::positive), f32({4})},
                  {{"capacity", 8}, {"tokens", 16}}}}},
};

}  // namespace

std::span<const OpDef> gate_ops() { return table; }

}  // namespace lancet::ops
