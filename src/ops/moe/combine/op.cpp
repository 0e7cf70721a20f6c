// combine(slots, expert, slot, weight, filled) -> y adds up what a token's experts made of it, by the weights of its K
// choices: y[t] = sum over k of weight[t,k] * slots[expert[t,k], slot[t,k]], in f32, in the order of the choices,
// rounded once. A dropped choice adds nothing; without any other, only the residual connection carries the token on.
// combine_dx(dy, slots, expert, slot, weight, filled) -> dslots, in the memory of the slots, and dweight.
// Ranks that have the same tokens may split the experts: choices of another rank's expert add nothing to y, and their
// dweight is zero.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

// Checks expert, slot, weight and filled, which are operands from `first` on.
Status check_choices(const OpInput& in, std::size_t first, std::int64_t experts) {
  const TensorType& expert = in.operands[first];
  if (!is_of_tokens(expert) || in.operands[first + 1] != expert) return expected("expert and slot i32[B*S,K]");
  if (in.operands[first + 2] != TensorType{DType::f32, expert.shape}) return expected("weight f32[B*S,K]");
  if (!is_filled(in.operands[first + 3], experts)) return expected("filled i32[E,2]");
  return {};
}

Inferred infer(const OpInput& in) {
  const TensorType& slots = in.operands[0];
  if (!is_activation(slots.dtype) || slots.shape.rank() != 3) return expected("slots [E,C,D] of f32 or bf16");
  LANCET_TRY(check_choices(in, 1, slots.shape[0]));
  const std::int64_t tokens = in.operands[1].shape[0], batch = in.attributes.integer("batch");
  if (batch < 1 || tokens % batch) return expected("tokens that the batch divides");
  return Types{{slots.dtype, {batch, tokens / batch, slots.shape[2]}}};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &dy = in.operands[0], &slots = in.operands[1];
  if (!is_activation(dy.dtype) || dy.shape.rank() != 3) return expected("dy [B,S,D] of f32 or bf16");
  if (slots.dtype != dy.dtype || slots.shape.rank() != 3 || slots.shape[2] != dy.shape[2])
    return expected("slots [E,C,D] of dy's type");
  LANCET_TRY(check_choices(in, 2, slots.shape[0]));
  if (in.operands[2].shape[0] != dy.shape.rows()) return expected("experts for each token of dy");
  return Types{slots, in.operands[4]};
}

void gradient(GradientContext& g) {
  std::vector<TensorId> operands = g.instruction().operands;
  operands.insert(operands.begin(), g.result_gradient(0));
  const auto results = g.emit("combine_dx", std::move(operands), {}, ir::Role::dx);
  g.add(0, results[0]);
  g.add(3, results[1]);
}

// Counts the rows of tokens and of their choices, not all slots; combine_dx reads and writes the latter.
Work work(const OpInput& in) {
  const TensorType &slots = in.operands[0], &expert = in.operands[1];
  const double rows = double(std::min(slots.shape.rows(), expert.shape.elements())), row = double(slots.shape.back());
  return {2 * rows * row, (rows + double(expert.shape[0])) * row * size_of(slots.dtype)};
}
Work work_dx(const OpInput& in) {
  const TensorType &slots = in.operands[1], &expert = in.operands[2];
  const double rows = double(std::min(slots.shape.rows(), expert.shape.elements())), row = double(slots.shape.back());
  return {3 * rows * row, (2 * rows + double(expert.shape[0])) * row * size_of(slots.dtype)};
}

Attributes sample_of(std::int64_t slots, std::int64_t batch) {
  return {{"capacity", slots}, {"tokens", 16}, {"batch", batch}};
}

Attributes sample_of_groups(std::int64_t capacity, std::int64_t groups) {
  return {{"capacity", capacity}, {"groups", groups}, {"tokens", 16}, {"batch", groups}};
}

const OpDef table[] = {
    {.name = "combine",
     .required = 5,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{irregular, 0, 0, 0, irregular}, {0}, SplitIn::time, {"batch"}},
                   {{1, 0, 0, 0, partial}, {0}, SplitIn::space, {"batch"}},
                   {{last, none, none, none, none}, {last}, SplitIn::space},
                   {{partial, none, none, none, none}, {partial}, SplitIn::space},
                   {{0, none, none, none, 0}, {partial}, SplitIn::space, {}, true}},
     .samples = {{{f32({4, 4, 24}), expert_of(16), slot_of(16), weight_of(16), filled_of(4)}, sample_of(4, 2)},
                 {{bf16({4, 6, 24}), expert_of(16), slot_of(16), weight_of(16), filled_of(4)}, sample_of(6, 4)},
                 {{f32({4, 8, 24}), expert_of(16), slot_of(16), weight_of(16), filled_of(4)}, sample_of_groups(2, 4)},
                 {{f32({4, 6, 24}), expert_of(16, 2), slot_of(16, 2), weight_of(16, 2), filled_of(4)}, sample_of(6, 4)},
                 {{bf16({4, 12, 17}), expert_of(16, 3), slot_of(16, 3), weight_of(16, 3), filled_of(4)},
                  sample_of_groups(3, 4)}},
     .ragged = Ragged{{0}, {}, 4, 2}},
    {.name = "combine_dx",
     .required = 6,
     .infer = infer_dx,
     .work = work_dx,
     .aliases = {{0, 1}},
     .partition = {{{0, irregular, 0, 0, 0, irregular}, {irregular, 0}, SplitIn::time},
                   {{0, 1, 0, 0, 0, partial}, {1, 0}, SplitIn::space},
                   {{last, last, none, none, none, none}, {last, partial}, SplitIn::space},
                   {{none, partial, none, none, none, none}, {none, partial}, SplitIn::space},
                   {{none, 0, none, none, none, 0}, {0, partial}, SplitIn::space, {}, true}},
     .samples = {{{f32({2, 8, 24}), f32({4, 5, 24}), expert_of(16), slot_of(16), weight_of(16), filled_of(4)},
                  sample_of(5, 2)},
                 {{f32({4, 4, 24}), f32({4, 8, 24}), expert_of(16), slot_of(16), weight_of(16), filled_of(4)},
                  sample_of_groups(2, 4)},
                 {{f32({2, 8, 24}), f32({4, 6, 24}), expert_of(16, 2), slot_of(16, 2), weight_of(16, 2), filled_of(4)},
                  sample_of(6, 2)},
                 {{f32({4, 4, 24}), f32({4, 12, 24}), expert_of(16, 3), slot_of(16, 3), weight_of(16, 3), filled_of(4)},
                  sample_of_groups(3, 4)}},
     .ragged = Ragged{{1}, {0}, 5, 3}},
};

}  // namespace

std::span<const OpDef> combine_ops() { return table; }

}  // namespace lancet::ops
