// dispatch(x, expert, slot, filled) copies each token into the slots of its K choices, [B,S,D] -> [E,C,D], where C is
// the attribute `slots`. Slots without a token are not written. Collectives over `tensor` may carry them, but no
// token's value is computed from them. dispatch_dx(dslots, expert, slot) adds up the gradients of a token's slots, in
// f32, in the order of its choices, rounded once; without a slot it is zero. Ranks that have the same tokens may split
// the experts: each then fills the slots of its own experts, and the gradient of a token counts these alone.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

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
     .forms = {{"x[b,s,d] expert:i32[b*s,k] slot:i32[b*s,k] filled:i32[e,~2] -> slots[e,~@slots,d]",
                "b+~ time, b+~ space, d space, e placed"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=8 d=24 k=1 e=4", sample_of(4, 2)), of("b=4 s=4 d=17 k=1 e=4 bf16", sample_of(16, 4)),
                 of("b=4 s=4 d=24 k=1 e=4", sample_of_groups(2, 4)), of("b=4 s=4 d=24 k=2 e=4", sample_of(6, 4)),
                 of("b=4 s=4 d=17 k=3 e=4 bf16", sample_of_groups(3, 4))},
     .again = Again{}},
    {.name = "dispatch_dx",
     .forms = {{"dslots[e,~c,d] expert:i32[@batch*s,k] slot:i32[@batch*s,k] -> dx[@batch,s,d]",
                "@batch+~ time, @batch+~ space, d space, - space dslots=partial, e placed"}},
     .work = work_dx,
     .samples = {of("e=4 c=4 d=24 s=8 k=1", sample_of(4, 2)), of("e=4 c=6 d=24 s=4 k=1 bf16", sample_of(6, 4)),
                 of("e=4 c=8 d=24 s=4 k=1", sample_of_groups(2, 4)), of("e=4 c=6 d=24 s=4 k=2", sample_of(6, 4)),
                 of("e=4 c=12 d=17 s=4 k=3 bf16", sample_of_groups(3, 4))}},
};

}  // namespace

std::span<const OpDef> dispatch_ops() { return table; }

}  // namespace lancet::ops
