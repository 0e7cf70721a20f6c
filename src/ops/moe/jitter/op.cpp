// jitter(x [B,S,D], sequence i32[B,1]) {eps, seed} -> y f32[B,S,D]: x times uniform numbers in [1 - eps, 1 + eps), one
// for each element (Fedus et al., Switch Transformers, section 2.4: the router's input in training). The result is f32
// for any type of x, as the paper casts the router's input: between two neighbours of bf16, which are up to 0.8% apart,
// noise of 1% would have a handful of values. sequence is the number of each sequence in the whole run; a number is
// drawn by (seed, sequence, element of the sequence), so it depends on no part, rank or micro batch.
// jitter_dx(dy f32[B,S,D], sequence) {eps, seed, dtype} -> dx of type dtype: dy times the same numbers, which are drawn
// again.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Status check_eps(const OpInput& in, Types&) {
  const double eps = in.attributes.real("eps");
  if (!(eps >= 0 && eps < 1)) return expected("eps from 0 to below 1");
  return {};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  if (!g.needs_gradient(0)) return;
  Attributes attributes = forward.attributes;
  attributes.set("dtype", std::string(name(g.type(forward.operands[0]).dtype)));
  g.add(0, g.emit("jitter_dx", {g.result_gradient(0), forward.operands[1]}, attributes, ir::Role::dx)[0]);
}

// About 100 integer operations draw 4 numbers.
Work work(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  return {25 * elements, elements * (size_of(in.operands[0].dtype) + sizeof(float))};
}
Work work_dx(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  return {25 * elements, elements * (sizeof(float) + size_of(*parse_dtype(in.attributes.text("dtype"))))};
}

const Attributes noise{{"eps", 0.25}, {"seed", 1234567890123}, {"vocabulary", 1000}};
Attributes noise_dx(std::string dtype) {
  return {{"eps", 0.25}, {"seed", 1234567890123}, {"vocabulary", 1000}, {"dtype", dtype}};
}

const OpDef table[] = {
    {.name = "jitter",
     .forms = {{"x[b,s,d] sequence:i32[b,1] -> y:f32[b,s,d]", "b"}},
     .check = check_eps,
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=4 d=40", noise), of("b=4 s=3 d=21", noise), of("b=2 s=5 d=17 bf16", noise),
                 of("b=3 s=4 d=64 bf16", noise)}},
    {.name = "jitter_dx",
     .forms = {{"dy:f32[b,s,d] sequence:i32[b,1] -> dx:@dtype[b,s,d]", "b"}},
     .check = check_eps,
     .work = work_dx,
     .samples = {of("b=2 s=4 d=40", noise_dx("f32")), of("b=2 s=5 d=17", noise_dx("bf16")),
                 of("b=3 s=4 d=64", noise_dx("bf16"))}},
};

}  // namespace

std::span<const OpDef> jitter_ops() { return table; }

}  // namespace lancet::ops
