// combine(slots, expert, slot, weight, filled) -> y adds up what a token's experts made of it, by the weights of its K
// choices: y[t] = sum over k of weight[t,k] * slots[expert[t,k], slot[t,k]], in f32, in the order of the choices,
// rounded once. A dropped choice adds nothing; without any other, only the residual connection carries the token on.
// combine_dx(dy, slots, expert, slot, weight, filled) -> dslots, in the memory of the slots, and dweight.
// Ranks that have the same tokens may split the experts: choices of another rank's expert add nothing to y, and their
// dweight is zero.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

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
     .forms = {{"slots[e,~c,d] expert:i32[@batch*s,k] slot:i32[@batch*s,k] weight:f32[@batch*s,k] filled:i32[e,~2] -> "
                "y[@batch,s,d]",
                "@batch+~ time, @batch+~ space, d space, - space slots=partial, e placed"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("e=4 c=4 d=24 s=8 k=1", sample_of(4, 2)), of("e=4 c=6 d=24 s=4 k=1 bf16", sample_of(6, 4)),
                 of("e=4 c=8 d=24 s=4 k=1", sample_of_groups(2, 4)), of("e=4 c=6 d=24 s=4 k=2", sample_of(6, 4)),
                 of("e=4 c=12 d=17 s=4 k=3 bf16", sample_of_groups(3, 4))}},
    {.name = "combine_dx",
     .forms = {{"dy[b,s,d] slots[e,~c,d] expert:i32[b*s,k] slot:i32[b*s,k] weight:f32[b*s,k] filled:i32[e,~2] -> "
                "dslots@slots[e,~c,d] dweight:f32[b*s,k]",
                "b+~ time, b+~ space, d space, - space slots=partial dslots=whole, e placed"}},
     .work = work_dx,
     .samples = {of("b=2 s=8 d=24 e=4 c=5 k=1", sample_of(5, 2)),
                 of("b=4 s=4 d=24 e=4 c=8 k=1", sample_of_groups(2, 4)),
                 of("b=2 s=8 d=24 e=4 c=6 k=2", sample_of(6, 2)),
                 of("b=4 s=4 d=24 e=4 c=12 k=3", sample_of_groups(3, 4))}},
};

}  // namespace

std::span<const OpDef> combine_ops() { return table; }

}  // namespace lancet::ops
