// One linear layer per expert, over its filled rows only: y[e,r] = x[e,r] w[e]^T + b[e] for rows[e,0] <= r < rows[e,W].
// x [E,R,K], w [E,N,K], b f32[E,N], rows i32[E,W+1] (from all_to_all_counts). Other rows are neither read nor written.
// Attribute tokens: the expected number of filled rows. Attribute streamed=1: as for linear. Attributes columns and
// part: expert_linear and expert_linear_dx make these columns of the result only (OpDef::column_tiles).
#include "ops/product_types.h"

namespace lancet::ops {
namespace {

// expert_linear_dw(dy, x, rows [, dw accumulator, db accumulator]) -> dw f32[E,N,K], db f32[E,N]
Inferred infer_dw(const OpInput& in) {
  const TensorType &dy = in.operands[0], &x = in.operands[1];
  if (!is_activation(dy.dtype) || dy.shape.rank() != 3) return expected("dy [E,R,N] of f32 or bf16");
  if (x != TensorType{dy.dtype, with_back(dy.shape, x.shape.back())}) return expected("x [E,R,K] of dy's type");
  if (!is_rows(in.operands[2], dy.shape[0])) return expected("rows i32[E,W+1]");
  const TensorType dw{DType::f32, {dy.shape[0], dy.shape[2], x.shape[2]}}, db{DType::f32, {dy.shape[0], dy.shape[2]}};
  if (in.operands.size() == 4) return expected("both accumulators or none");
  if (in.operands.size() > 4 && (in.operands[3] != dw || in.operands[4] != db))
    return expected("accumulators like the results");
  return Types{dw, db};
}

Inferred infer(const OpInput& in) { return columns_of(expert_linear_types(in), in); }
Inferred infer_dx(const OpInput& in) { return columns_of(expert_linear_dx_types(in), in); }

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const TensorId dy = g.result_gradient(0), rows = forward.operands[3];
  if (g.needs_gradient(0))
    g.add(0, g.emit("expert_linear_dx", {dy, forward.operands[1], rows}, forward.attributes, ir::Role::dx)[0]);
  emit_dw(g, "expert_linear_dw", {dy, forward.operands[0], rows}, forward.attributes, 1, 2);
}

// The work of a product over the expected filled rows. rows: the shape of the buffer, whose last extent is summed over
// or kept; n: the other feature extent; row_bytes: bytes of all rows; whole_bytes: bytes of operands without rows.
Work product(const Shape& rows, std::int64_t n, const OpInput& in, double row_bytes, double whole_bytes) {
  const double filled = double(expected_rows(in, rows.rows()));
  return {2.0 * filled * double(rows.back()) * double(n), row_bytes * filled / double(rows.rows()) + whole_bytes};
}
double bytes_at(const OpInput& in, std::size_t operand) { return double(ir::bytes(in.operands[operand])); }
// Of a product that makes `columns` of all its columns, which read as large a share of the weights.
Work product_of_columns(const Shape& from, std::int64_t all, const OpInput& in) {
  const std::int64_t columns = in.attributes.integer("columns", all);
  const double rows = bytes_at(in, 0) + double(from.rows() * columns) * size_of(in.operands[0].dtype);
  const double weights = double(columns) / double(all) * bytes_at(in, 1);
  return product(from, columns, in, rows, bytes_of(in) - bytes_at(in, 0) - bytes_at(in, 1) + weights);
}
Work work(const OpInput& in) { return product_of_columns(in.operands[0].shape, in.operands[1].shape[1], in); }
Work work_dx(const OpInput& in) { return product_of_columns(in.operands[0].shape, in.operands[1].shape[2], in); }
Work work_dw(const OpInput& in) {
  const Shape &dy = in.operands[0].shape, &x = in.operands[1].shape;
  const double rows = bytes_at(in, 0) + bytes_at(in, 1);
  return product(dy, x[2], in, rows, bytes_of(in) - rows + 4.0 * double(dy[0] * dy[2] * x[2]));
}

const Attributes sample_route{{"capacity", 8}, {"tokens", 16}};
const Attributes streamed_route{{"capacity", 8}, {"tokens", 16}, {"streamed", 1}};  // as linear's

const Attributes groups_route{{"capacity", 2}, {"groups", 4}, {"tokens", 16}};

const OpDef table[] = {
    {.name = "expert_linear",
     .required = 4,
     .infer = infer,
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .partition = {{{irregular, none, none, irregular}, {irregular}, SplitIn::time, {"tokens"}},
                   {{0, 0, 0, 0}, {0}, SplitIn::both, {"tokens"}},
                   {{1, none, none, partial}, {1}, SplitIn::space, {"tokens"}},
                   {{none, 1, 1, none}, {last}, SplitIn::space},
                   {{last, 2, once, none}, {partial}, SplitIn::space}},
     .samples = {{{f32({4, 8, 24}), f32({4, 16, 24}), f32({4, 16}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{bf16({4, 8, 32}), bf16({4, 16, 32}), f32({4, 16}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{f32({4, 8, 24}), f32({4, 16, 24}), f32({4, 16}), i32({4, 2}, Fill::rows)}, streamed_route},
                 {{f32({4, 8, 24}), f32({4, 16, 24}), f32({4, 16}), i32({4, 2}, Fill::rows)}, groups_route}},
     .column_tiles = true,
     .kind = Kind::product,
     .again = Again{},
     .ragged = Ragged{{0}, {0}, 3}},
    {.name = "expert_linear_dx",
     .required = 3,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{irregular, none, irregular}, {irregular}, SplitIn::time, {"tokens"}},
                   {{0, 0, 0}, {0}, SplitIn::both, {"tokens"}},
                   {{1, none, partial}, {1}, SplitIn::space, {"tokens"}},
                   {{none, 2, none}, {last}, SplitIn::space},
                   {{last, 1, none}, {partial}, SplitIn::space}},
     .samples = {{{f32({4, 8, 16}), f32({4, 16, 24}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{bf16({4, 8, 16}), bf16({4, 16, 32}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{f32({4, 8, 16}), f32({4, 16, 24}), i32({4, 2}, Fill::rows)}, groups_route}},
     .column_tiles = true,
     .kind = Kind::product,
     .ragged = Ragged{{0}, {0}, 2}},
    {.name = "expert_linear_dw",
     .required = 3,
     .most = 5,
     .infer = infer_dw,
     .work = work_dw,
     .aliases = {{0, 3}, {1, 4}},
     .partition = {{{0, 0, 0, 0, 0}, {0, 0}, SplitIn::both, {"tokens"}},
                   {{1, 1, partial, accumulated, accumulated}, {accumulated, accumulated}, SplitIn::space, {"tokens"}},
                   {{last, none, none, 1, 1}, {1, 1}, SplitIn::space},
                   {{none, last, none, 2, none}, {2, none}, SplitIn::space}},
     .samples = {{{f32({4, 8, 16}), f32({4, 8, 24}), i32({4, 2}, Fill::rows), f32({4, 16, 24}), f32({4, 16})},
                  sample_route},
                 {{bf16({4, 8, 16}), bf16({4, 8, 32}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{f32({4, 8, 16}), f32({4, 8, 24}), i32({4, 2}, Fill::rows)}, groups_route}},
     .kind = Kind::product,
     .ragged = Ragged{{0, 1}, {}, 2}},
};

}  // namespace

std::span<const OpDef> expert_linear_ops() { return table; }

}  // namespace lancet::ops
