// jitter(x [B,S,D], sequence i32[B,1]) {eps, seed} -> y: x times uniform numbers in [1 - eps, 1 + eps), one for each
// element (Fedus et al., Switch Transformers, section 2.4: the router's input in training). sequence is the number of
// each sequence in the whole run; a number is drawn by (seed, sequence, element of the sequence), so it depends on no
// part, rank or micro batch. The gradient is multiplied by the same numbers, which are drawn again.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType& x = in.operands[0];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [B,S,D] of f32 or bf16");
  if (!is_of_sequences(in.operands[1], x.shape[0])) return expected("sequence i32[B,1]");
  const double eps = in.attributes.real("eps");
  if (!(eps >= 0 && eps < 1)) return expected("eps from 0 to below 1");
  return Types{x};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  if (!g.needs_gradient(0)) return;
  g.add(0, g.emit("jitter", {g.result_gradient(0), forward.operands[1]}, forward.attributes, ir::Role::dx)[0]);
}

// About 100 integer operations draw 4 numbers.
Work work(const OpInput& in) { return work_per_element(in, 25, 2); }

Sample sample_of(SampleOperand x) {
  const std::int64_t batch = x.type.shape[0];
  return {{x, i32({batch, 1}, Fill::tokens)}, {{"eps", 0.25}, {"seed", 1234567890123}, {"vocabulary", 1000}}};
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
};

}  // namespace

std::span<const OpDef> jitter_ops() { return table; }

}  // namespace lancet::ops
