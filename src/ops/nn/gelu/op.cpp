// GELU in its tanh form (Hugging Face's gelu_new): gelu(x [, rows]) -> y, and gelu_dx(dy, x [, rows]) -> dx in the
// memory of dy. With the operand `rows` (from all_to_all_counts) x is [E,R,F], and only the filled rows of each expert
// are read and written. Attribute tokens: the expected number of filled rows.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool fits_rows(const TensorType& x, const TensorType& rows) {
  return rows.dtype == DType::i32 && rows.shape.rank() == 2 && x.shape.rank() == 3 && rows.shape[0] == x.shape[0];
}

Inferred infer(const OpInput& in) {
  const TensorType& x = in.operands[0];
  if (!is_activation(x.dtype)) return expected("x of f32 or bf16");
  if (in.operands.size() > 1 && !fits_rows(x, in.operands[1])) return expected("rows i32[E,W+1] for x [E,R,F]");
  return Types{x};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType& dy = in.operands[0];
  if (!is_activation(dy.dtype) || in.operands[1] != dy) return expected("dy and x of one type");
  if (in.operands.size() > 2 && !fits_rows(dy, in.operands[2])) return expected("rows i32[E,W+1] for x [E,R,F]");
  return Types{dy};
}

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

const OpDef table[] = {
    {.name = "gelu",
     .required = 1,
     .most = 2,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .partition = {{{0}, {0}},
                   {{1}, {1}},
                   {{2}, {2}},
                   {{irregular, irregular}, {irregular}, SplitIn::time, {"tokens"}},
                   {{0, 0}, {0}, SplitIn::space, {"tokens"}},
                   {{1, partial}, {1}, SplitIn::space, {"tokens"}},
                   {{last, none}, {last}, SplitIn::space}},
     .samples = {{{f32({2, 4, 37})}, {}},
                 {{bf16({2, 4, 32})}, {}},
                 {{f32({4, 8, 24}), i32({4, 2}, Fill::rows)}, {{"capacity", 8}, {"tokens", 16}}},
                 {{bf16({4, 8, 24}), i32({4, 2}, Fill::rows)}, {{"capacity", 8}, {"tokens", 16}}},
                 {{f32({4, 8, 24}), i32({4, 2}, Fill::rows)}, {{"capacity", 2}, {"groups", 4}, {"tokens", 16}}}},
     .again = Again{},
     .ragged = Ragged{{0}, {0}, 1}},
    {.name = "gelu_dx",
     .required = 2,
     .most = 3,
     .infer = infer_dx,
     .work = work_dx,
     .aliases = {{0, 0}},
     .partition = {{{0, 0}, {0}},
                   {{1, 1}, {1}},
                   {{2, 2}, {2}},
                   {{irregular, irregular, irregular}, {irregular}, SplitIn::time, {"tokens"}},
                   {{0, 0, 0}, {0}, SplitIn::space, {"tokens"}},
                   {{1, 1, partial}, {1}, SplitIn::space, {"tokens"}},
                   {{last, last, none}, {last}, SplitIn::space}},
     .samples = {{{f32({2, 4, 37}), f32({2, 4, 37})}, {}},
                 {{bf16({2, 4, 32}), bf16({2, 4, 32})}, {}},
                 {{f32({4, 8, 24}), f32({4, 8, 24}), i32({4, 2}, Fill::rows)}, {{"capacity", 8}, {"tokens", 16}}},
                 {{f32({4, 8, 24}), f32({4, 8, 24}), i32({4, 2}, Fill::rows)},
                  {{"capacity", 2}, {"groups", 4}, {"tokens", 16}}}},
     .ragged = Ragged{{0, 1}, {0}, 2}},
};

}  // namespace

std::span<const OpDef> gelu_ops() { return table; }

}  // namespace lancet::ops
