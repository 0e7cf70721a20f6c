// One linear layer per expert, over its filled rows only: y[e,r] = x[e,r] w[e]^T + b[e] for rows[e,0] <= r < rows[e,W].
// x [E,R,K], w [E,N,K], b f32[E,N], rows i32[E,W+1] (from all_to_all_counts). Other rows are neither read nor written.
// Attribute tokens: the expected number of filled rows. Attribute streamed=1: as for linear. Attributes columns and
// part: all but expert_linear_dw make these columns of the result only (OpDef::column_tiles). expert_product(x, w,
// rows) is the same without b; its expert_linear_dw has the attribute unbiased=1 and no gradient of b.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

// The result's columns that an instruction makes (OpDef::column_tiles): all, without the attribute.
Status check_columns(const OpInput& in, Types& results) {
  if (!in.attributes.has("columns")) return {};
  const std::int64_t columns = in.attributes.integer("columns"), part = in.attributes.integer("part", 0);
  Shape& shape = results[0].shape;
  if (columns < 1 || part < 0 || part >= shape.back() / columns) return expected("columns within the result");
  shape.set(-1, columns);
  return {};
}

void gradient(GradientContext& g) {
  const ir::Instruction& forward = g.instruction();
  const bool bias = forward.operands.size() > 3;
  const TensorId dy = g.result_gradient(0), rows = forward.operands.back();
  if (g.needs_gradient(0))
    g.add(0, g.emit("expert_linear_dx", {dy, forward.operands[1], rows}, forward.attributes, ir::Role::dx)[0]);
  Attributes attributes = forward.attributes;
  if (!bias) attributes.set("unbiased", std::int64_t(1));
  emit_dw(g, "expert_linear_dw", {dy, forward.operands[0], rows}, attributes, 1, bias ? 2 : 1);
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

const Attributes unbiased_route{{"capacity", 8}, {"tokens", 16}, {"unbiased", 1}};
const Attributes groups_route{{"capacity", 2}, {"groups", 4}, {"tokens", 16}};

const OpDef table[] = {
    {.name = "expert_linear",
     .forms = {{"x[e,~r,k] w[e,n,k] b:f32[e,n] rows:i32[e,~*] -> y[e,~r,n]",
                "~ time /tokens, e /tokens, ~ space /tokens, n space, k space b=once"}},
     .check = check_columns,
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .samples = {of("e=4 r=8 k=24 n=16", sample_route), of("e=4 r=8 k=32 n=16 bf16", sample_route),
                 of("e=4 r=8 k=24 n=16", streamed_route), of("e=4 r=8 k=24 n=16", groups_route)},
     .column_tiles = true,
     .kind = Kind::product,
     .again = Again{}},
    {.name = "expert_product",
     .forms = {{"x[e,~r,k] w[e,n,k] rows:i32[e,~*] -> y[e,~r,n]",
                "~ time /tokens, e /tokens, ~ space /tokens, n space, k space"}},
     .check = check_columns,
     .gradient = gradient,
     .work = work,
     .weights = {1},
     .samples = {of("e=4 r=8 k=24 n=16", sample_route), of("e=4 r=8 k=32 n=16 bf16", sample_route),
                 of("e=4 r=8 k=24 n=16", streamed_route), of("e=4 r=8 k=24 n=16", groups_route)},
     .column_tiles = true,
     .kind = Kind::product,
     .again = Again{}},
    {.name = "expert_linear_dx",
     .forms = {{"dy[e,~r,n] w[e,n,k] rows:i32[e,~*] -> dx[e,~r,k]",
                "~ time /tokens, e /tokens, ~ space /tokens, k space, n space"}},
     .check = check_columns,
     .work = work_dx,
     .samples = {of("e=4 r=8 n=16 k=24", sample_route), of("e=4 r=8 n=16 k=32 bf16", sample_route),
                 of("e=4 r=8 n=16 k=24", groups_route)},
     .column_tiles = true,
     .kind = Kind::product},
    {.name = "expert_linear_dw",
     .forms = {{"dy[e,~r,n] x[e,~r,k] rows:i32[e,~*] -> +dw:f32[e,n,k] +db?!unbiased:f32[e,n]",
                "~ time /tokens, e /tokens, ~ space /tokens, n space, k space db=whole"}},
     .work = work_dw,
     .samples = {of("e=4 r=8 n=16 k=24 +dw +db", sample_route), of("e=4 r=8 n=16 k=32 bf16", sample_route),
                 of("e=4 r=8 n=16 k=24", groups_route), of("e=4 r=8 n=16 k=24 +dw", unbiased_route)},
     .kind = Kind::product},
};

}  // namespace

std::span<const OpDef> expert_linear_ops() { return table; }

}  // namespace lancet::ops
