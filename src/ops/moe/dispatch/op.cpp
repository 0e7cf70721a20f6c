// dispatch(x, expert, slot, filled) copies each token into the slots of its K choices, [B,S,D] -> [E,C,D], where C is
// the attribute `slots`. Slots without a token are not written. Collectives over `tensor` may carry them, but no
// token's value is computed from them. dispatch_dx(dslots, expert, slot) adds up the gradients of a token's slots, in
// f32, in the order of its choices, rounded once; without a slot it is zero. Ranks that have the same tokens may split
// the experts: each then fills the slots of its own experts, and the gradient of a token counts these alone.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &x = in.operands[0], &filled = in.operands[3];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [B,S,D] of f32 or bf16");
  if (!is_of_tokens(in.operands[1], x.shape.rows()) || in.operands[2] != in.operands[1])
    return expected("expert and slot i32[B*S,K]");
  if (filled.shape.rank() != 2 || !is_filled(filled, filled.shape[0])) return expected("filled i32[E,2]");
  return Types{{x.dtype, {filled.shape[0], in.attributes.integer("slots"), x.shape[2]}}};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &slots = in.operands[0], &expert = in.operands[1];
  if (!is_activation(slots.dtype) || slots.shape.rank() != 3) return expected("dslots [E,C,D] of f32 or bf16");
  if (!is_of_tokens(expert) || in.operands[2] != expert) return expected("expert and slot i32[B*S,K]");
  const std::int64_t tokens = expert.shape[0], batch = in.attributes.integer("batch");
  if (batch < 1 || tokens % batch) return expected("tokens that the batch divides");
  return Types{{slots.dtype, {batch, tokens / batch, slots.shape[2]}}};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const std::int64_t batch = g.type(forward.operands[0]).shape[0];
  g.add(0, g.emit("dispatch_dx", {g.result_gradient(0), forward.operands[1], forward.operands[2]}, {{"batch", batch}},
                  ir::Role::dx)[0]);
}

// Each token's row, and the rows of its choices, are read or written once; the size of the buffer does not matter.
Work work(const OpInput& in) {
  const TensorType &x = in.operands[0], &expert = in.operands[1];
  const std::int64_t slots = in.operands[3].shape[0] * in.attributes.integer("slots");
  const auto rows = double(expert.shape[0] + std::min(slots, expert.shape.elements()));
  return {0, rows * double(x.shape.back()) * size_of(x.dtype)};
}
Work work_dx(const OpInput& in) {
  const TensorType &slots = in.operands[0], &expert = in.operands[1];
  const double rows = double(std::min(slots.shape.rows(), expert.shape.elements())), row = double(slots.shape.back());
  return {rows * row, (rows + double(expert.shape[0])) * row * size_of(slots.dtype)};
}

Attributes sample_of(std::int64_t slots, std::int64_t batch) {
  return {{"capacity", slots}, {"slots", slots}, {"experts", 4}, {"batch", batch}};
}

Attributes sample_of_groups(std::int64_t capacity, std::int64_t groups) {
  return {{"capacity", capacity}, {"groups", groups}, {"slots", groups * capacity}, {"experts", 4}, {"batch", groups}};
}

const OpDef table[] = {
    {.name = "dispatch",
     .required = 4,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, 0, 0, irregular}, {irregular}, SplitIn::time},
                   {{0, 0, 0, partial}, {1}, SplitIn::space, {"slots"}},
                   {{last, none, none, none}, {last}, SplitIn::space},
                   {{none, none, none, 0}, {0}, SplitIn::space, {}, true}},
     .samples = {{{f32({2, 8, 24}), expert_of(16), slot_of(16), filled_of(4)}, sample_of(4, 2)},
                 {{bf16({4, 4, 17}), expert_of(16), slot_of(16), filled_of(4)}, sample_of(16, 4)},
                 {{f32({4, 4, 24}), expert_of(16), slot_of(16), filled_of(4)}, sample_of_groups(2, 4)},
                 {{f32({4, 4, 24}), expert_of(16, 2), slot_of(16, 2), filled_of(4)}, sample_of(6, 4)},
                 {{bf16({4, 4, 17}), expert_of(16, 3), slot_of(16, 3), filled_of(4)}, sample_of_groups(3, 4)}},
     .again = Again{},
     .ragged = Ragged{{}, {0}, 3, 2}},
    {.name = "dispatch_dx",
     .required = 3,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{irregular, 0, 0}, {0}, SplitIn::time, {"batch"}},
                   {{1, 0, 0}, {0}, SplitIn::space, {"batch"}},
                   {{last, none, none}, {last}, SplitIn::space},
                   {{partial, none, none}, {partial}, SplitIn::space},
                   {{0, none, none}, {partial}, SplitIn::space, {}, true}},
     .samples = {{{f32({4, 4, 24}), expert_of(16), slot_of(16)}, sample_of(4, 2)},
                 {{bf16({4, 6, 24}), expert_of(16), slot_of(16)}, sample_of(6, 4)},
                 {{f32({4, 8, 24}), expert_of(16), slot_of(16)}, sample_of_groups(2, 4)},
                 {{f32({4, 6, 24}), expert_of(16, 2), slot_of(16, 2)}, sample_of(6, 4)},
                 {{bf16({4, 12, 17}), expert_of(16, 3), slot_of(16, 3)}, sample_of_groups(3, 4)}},
     .ragged = Ragged{{0}, {}, -1, 2}},
};

}  // namespace

std::span<const OpDef> dispatch_ops() { return table; }

}  // namespace lancet::ops
