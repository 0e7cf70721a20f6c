// Rows times the sigmoid of a number each: sigmoid_gate(x, gate) -> y = sigmoid(gate) x, with gate[b,s,1]. Its dx is
// sigmoid_gate(dy, gate), and sigmoid_gate_dgate(dy, x, gate) -> dgate = sigmoid'(gate) (dy . x).
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const TensorId dy = g.result_gradient(0), x = forward.operands[0], gate = forward.operands[1];
  if (g.needs_gradient(0)) g.add(0, g.emit("sigmoid_gate", {dy, gate}, {}, ir::Role::dx)[0]);
  if (g.needs_gradient(1)) g.add(1, g.emit("sigmoid_gate_dgate", {dy, x, gate}, {}, ir::Role::dx)[0]);
}

Work work(const OpInput& in) { return work_per_element(in, 1, 2); }
Work work_dgate(const OpInput& in) { return work_per_element(in, 2, 2); }

const OpDef table[] = {
    {.name = "sigmoid_gate",
     .forms = {{"x[b,s,d] gate[b,s,1] -> y[b,s,d]", "b, s"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=4 d=37"), of("b=2 s=5 d=320 bf16")},
     .again = Again{}},
    {.name = "sigmoid_gate_dgate",
     .forms = {{"dy[b,s,d] x[b,s,d] gate[b,s,1] -> dgate[b,s,1]", "b, s"}},
     .work = work_dgate,
     .samples = {of("b=2 s=4 d=37"), of("b=2 s=5 d=320 bf16")}},
};

}  // namespace

std::span<const OpDef> sigmoid_gate_ops() { return table; }

}  // namespace lancet::ops
