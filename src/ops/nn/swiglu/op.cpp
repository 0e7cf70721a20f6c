// SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020): swiglu(x [, rows]) -> silu(gate) * up, and swiglu_dx(dy, x
// [, rows]) -> dx. x has gate and up of each feature side by side, f*2 columns: g0 u0 g1 u1 ..., so that any range of
// features, of a shard or of a tile, is one range of columns. With the operand `rows`, as for gelu.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands{g.result_gradient(0), forward.operands[0]};
  if (forward.operands.size() > 1) operands.push_back(forward.operands[1]);
  g.add(0, g.emit("swiglu_dx", operands, forward.attributes, ir::Role::dx)[0]);
}

// flops and tensors (of f columns) for each element of the result. x: the operand of f*2 columns; rows: the operand of
// filled rows.
Work work_of(const OpInput& in, std::size_t x, std::size_t rows, double flops, double tensors) {
  const Shape& shape = in.operands[x].shape;
  const double filled = double(in.operands.size() > rows ? expected_rows(in, shape.rows()) : shape.rows());
  const double elements = filled * double(shape.back()) / 2;
  return {flops * elements, tensors * elements * size_of(in.operands[0].dtype)};
}
Work work(const OpInput& in) { return work_of(in, 0, 1, 12, 3); }
Work work_dx(const OpInput& in) { return work_of(in, 1, 2, 24, 5); }

const Attributes route{{"capacity", 8}, {"tokens", 16}},
    route_of_groups{{"capacity", 2}, {"groups", 4}, {"tokens", 16}};
constexpr std::string_view cuts = "~ time /tokens, e space /tokens, ~ space /tokens, f space";

const OpDef table[] = {
    {.name = "swiglu",
     .forms = {{"x[b,s,f*2] -> y[b,s,f]", "b, s, f space"}, {"x[e,~r,f*2] rows:i32[e,~*] -> y[e,~r,f]", cuts}},
     .gradient = gradient,
     .work = work,
     .samples = {of("b=2 s=4 f=37"), of("b=2 s=4 f=32 bf16"), of("e=4 r=8 f=24", route), of("e=4 r=8 f=24 bf16", route),
                 of("e=4 r=8 f=24", route_of_groups)},
     .again = Again{}},
    {.name = "swiglu_dx",
     .forms = {{"dy[b,s,f] x[b,s,f*2] -> dx[b,s,f*2]", "b, s, f space"},
               {"dy[e,~r,f] x[e,~r,f*2] rows:i32[e,~*] -> dx[e,~r,f*2]", cuts}},
     .work = work_dx,
     .samples = {of("b=2 s=4 f=37"), of("b=2 s=4 f=32 bf16"), of("e=4 r=8 f=24", route),
                 of("e=4 r=8 f=24", route_of_groups)}},
};

}  // namespace

std::span<const OpDef> swiglu_ops() { return table; }

}  // namespace lancet::ops
