// y = a + b: the sum of two gradients of one tensor. add_to(a, b) -> y makes it in the memory of a; in the body of a
// repeat it adds what each round makes onto a, which is the sum before the first round.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  for (int operand : {0, 1})
    if (g.needs_gradient(operand)) g.add(operand, g.result_gradient(0));
}

Work work(const OpInput& in) { return work_per_element(in, 1, 3); }

const OpDef table[] = {
    {.name = "add",
     .forms = {{"a[...] b[...] -> y[...]", "0, 1, 2"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("...=2,4,37"), of("...=2,4,32 bf16")}},
    {.name = "add_to",
     .forms = {{"a[...] b[...] -> y@a[...]", "0, 1 space, 2 space, - space a=partial b=partial"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("...=2,4,37"), of("...=2,4,32 bf16")}},
};

}  // namespace

std::span<const OpDef> add_ops() { return table; }

}  // namespace lancet::ops
