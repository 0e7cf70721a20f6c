// GELU in its tanh form (Hugging Face's gelu_new): gelu(x [, rows]) -> y, and gelu_dx(dy, x [, rows]) -> dx in the
// memory of dy. With the operand `rows` (from all_to_all_counts) x is [E,R,F], and only the filled rows of each expert
// are read and written. Attribute tokens: the expected number of filled rows.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{g.result_gradient(0), forward.operands[0]};
  if (forward.operands.size() > 1) operands.push_back(forward.operands[1]);
  g.add(0, g.emit("gelu_dx", operands, forward.attributes, ir::Role::dx)[0]);
}

// The number of elements; with the operand `rows`, that of the expected filled rows.
double elements_of(const OpInput& in, std::size_t rows) {
  const Shape& x = in.operands[0].shape;
  return double(in.operands.size() > rows ? expected_rows(in, x.rows()) * x.back() : x.elements());
}
Work work(const OpInput& in) {
  const double elements = elements_of(in, 1);
  return {14 * elements, 2 * elements * size_of(in.operands[0].dtype)};
}
Work work_dx(const OpInput& in) {
  const double elements = elements_of(in, 2);
  return {24 * elements, 3 * elements * size_of(in.operands[0].dtype)};
}

const Attributes route{{"capacity", 8}, {"tokens", 16}},
    route_of_groups{{"capacity", 2}, {"groups", 4}, {"tokens", 16}};

const OpDef table[] = {
    {.name = "gelu",
     .forms = {{"x[...] -> y[...]", "0, 1, 2"},
               {"x[e,~r,f] rows:i32[e,~*] -> y[e,~r,f]", "~ time /tokens, e space /tokens, ~ space /tokens, f space"}},
     .gradient = gradient,
     .work = work,
     .samples = {of("...=2,4,37"), of("...=2,4,32 bf16"), of("e=4 r=8 f=24", route), of("e=4 r=8 f=24 bf16", route),
                 of("e=4 r=8 f=24", route_of_groups)},
     .again = Again{}},
    {.name = "gelu_dx",
     .forms = {{"dy[...] x[...] -> dx@dy[...]", "0, 1, 2"},
               {"dy[e,~r,f] x[e,~r,f] rows:i32[e,~*] -> dx@dy[e,~r,f]",
                "~ time /tokens, e space /tokens, ~ space /tokens, f space"}},
     .work = work_dx,
     .samples = {of("...=2,4,37"), of("...=2,4,32 bf16"), of("e=4 r=8 f=24", route),
                 of("e=4 r=8 f=24", route_of_groups)}},
};

}  // namespace

std::span<const OpDef> gelu_ops() { return table; }

}  // namespace lancet::ops
