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

bool has_noise(const OpInput& in) {
  const double eps = in.attributes.real("eps");
  return eps >= 0 && eps < 1;
}

Inferred infer(const OpInput& in) {
  const TensorType& x = in.operands[0];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [B,S,D] of f32 or bf16");
  if (!is_of_sequences(in.operands[1], x.shape[0])) return expected("sequence i32[B,1]");
  if (!has_noise(in)) return expected("eps from 0 to below 1");
  return Types{{DType::f32, x.shape}};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType& dy = in.operands[0];
  if (dy.dtype != DType::f32 || dy.shape.rank() != 3) return expected("dy f32[B,S,D]");
  if (!is_of_sequences(in.operands[1], dy.shape[0])) return expected("sequence i32[B,1]");
  if (!has_noise(in)) return expected("eps from 0 to below 1");
  const auto dtype = parse_dtype(in.attributes.text("dtype"));
  if (!dtype || !is_activation(*dtype)) return expected("dtype f32 or bf16");
  return Types{{*dtype, dy.shape}};
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

Sample sample_of(SampleOperand x) {
  const std::int64_t batch = x.type.shape[0];
  return {{x, i32({batch, 1}, Fill::tokens)}, {{"eps", 0.25}, {"seed", 1234567890123}, {"vocabulary", 1000}}};
}
Sample sample_dx(SampleOperand dy, std::string dtype) {
  Sample sample = sample_of(dy);
  sample.attributes.set("dtype", dtype);
  return sample;
}

const OpDef table[] = {
    {.name = "jitter",
     .required = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0, 0}, {0}}},
     .samples = {sample_of(f32({2, 4, 40})), sample_of(f32({4, 3, 21})), sample_of(bf16({2, 5, 17})),
                 sample_of(bf16({3, 4, 64}))}},
    {.name = "jitter_dx",
     .required = 2,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{0, 0}, {0}}},
     .samples = {sample_dx(f32({2, 4, 40}), "f32"), sample_dx(f32({2, 5, 17}), "bf16"),
                 sample_dx(f32({3, 4, 64}), "bf16")}},
};

}  // namespace

std::span<const OpDef> jitter_ops() { return table; }

}  // namespace lancet::ops
