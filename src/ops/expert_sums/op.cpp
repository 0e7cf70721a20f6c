// The product of experts' rows over a tile of the columns that it sums over (collective matmul's all-to-all beside a
// product, Wang et al., ASPLOS 2023): tiles of the rows arrive one by one, each adds its product onto sums in f32, in
// the order of the columns. Where they are added in that order, as on the CPU by the own kernel, they have the bits of
// the whole product if tiles have even numbers of columns. Attributes part and parts name the tile (column_tiles.h).
//   expert_linear_sums(x [E,R,K'], w [E,N,K], b f32[E,N], rows [, sums]) -> sums f32[E,R,N]: of the columns of x that
//       the tile has; without sums it begins with b
//   expert_linear_dx_sums(dy [E,R,N'], w [E,N,K], rows [, sums]) -> sums f32[E,R,K]: likewise, of the columns of dy
//   round_rows(sums f32[E,R,N], rows) -> bf16[E,R,N]: the filled rows, rounded
// Attribute tokens: the expected number of filled rows; of: the op whose tile it is (contraction.h).
#include "lancet/ops/column_tiles.h"
#include "ops/product_types.h"

namespace lancet::ops {
namespace {

// The result of a product whose operand 0 is a tile: sums that the last operand may have, behind `required` operands.
Inferred sums_of(const OpInput& in, Inferred whole, std::size_t required) {
  LANCET_ASSIGN(const Types types, std::move(whole));
  const TensorType sums{DType::f32, types[0].shape};
  if (in.operands.size() > required && in.operands[required] != sums) return expected("sums like the result");
  return Types{sums};
}

// The operands, of which the first has all columns again; an error if it is no tile of `width` columns.
Result<Types> with_whole(const OpInput& in, std::int64_t width, std::size_t required) {
  Types operands(in.operands.begin(), in.operands.begin() + std::ptrdiff_t(required));
  Shape& shape = operands[0].shape;
  if (!is_column_tile(in.attributes, width) || column_tile(in.attributes, width).columns != shape.back())
    return expected("rows with the columns of the tile");
  shape = with_back(shape, width);
  return operands;
}

bool are_rows_and_weights(const OpInput& in) {
  return in.operands[0].shape.rank() == 3 && in.operands[1].shape.rank() == 3;
}

Inferred infer(const OpInput& in) {
  if (!are_rows_and_weights(in)) return expected("x [E,R,K'] and w [E,N,K]");
  LANCET_ASSIGN(const Types operands, with_whole(in, in.operands[1].shape[2], 4));
  return sums_of(in, expert_linear_types({operands, in.attributes}), 4);
}

Inferred infer_dx(const OpInput& in) {
  if (!are_rows_and_weights(in)) return expected("dy [E,R,N'] and w [E,N,K]");
  LANCET_ASSIGN(const Types operands, with_whole(in, in.operands[1].shape[1], 3));
  return sums_of(in, expert_linear_dx_types({operands, in.attributes}), 3);
}

Inferred infer_round(const OpInput& in) {
  const TensorType& sums = in.operands[0];
  if (sums.dtype != DType::f32 || sums.shape.rank() != 3 || !is_rows(in.operands[1], sums.shape[0]))
    return expected("sums f32[E,R,N] and rows i32[E,W+1]");
  return Types{{DType::bf16, sums.shape}};
}

// width: of a row of the sums; all: the columns that all tiles sum over. Reads and writes the sums' filled rows.
Work work_of(const OpInput& in, std::int64_t width, std::int64_t all, bool adds) {
  const TensorType &x = in.operands[0], &w = in.operands[1];
  const auto filled = double(expected_rows(in, x.shape.rows())), depth = double(x.shape.back());
  const double row = depth * size_of(x.dtype) + (adds ? 8.0 : 4.0) * double(width);
  return {2 * filled * depth * double(width), filled * row + double(ir::bytes(w)) * depth / double(all)};
}
Work work(const OpInput& in) {
  const Shape& w = in.operands[1].shape;
  return work_of(in, w[1], w[2], in.operands.size() > 4);
}
Work work_dx(const OpInput& in) {
  const Shape& w = in.operands[1].shape;
  return work_of(in, w[2], w[1], in.operands.size() > 3);
}
Work work_round(const OpInput& in) {
  const Shape& sums = in.operands[0].shape;
  return {0, 6 * double(expected_rows(in, sums.rows())) * double(sums.back())};
}

Attributes sample_tile(std::int64_t part, std::int64_t parts) {
  return {{"capacity", 8}, {"tokens", 16}, {"part", part}, {"parts", parts}};
}
SampleOperand rows() { return i32({4, 2}, Fill::rows); }

const OpDef table[] = {
    {.name = "expert_linear_sums",
     .required = 4,
     .most = 5,
     .infer = infer,
     .work = work,
     .aliases = {{0, 4}},
     .weights = {1},
     .samples = {{{f32({4, 8, 8}), f32({4, 16, 24}), f32({4, 16}), rows()}, sample_tile(0, 3)},
                 {{f32({4, 8, 7}), f32({4, 15, 20}), f32({4, 15}), rows(), f32({4, 8, 15})}, sample_tile(1, 3)},
                 {{bf16({4, 8, 16}), bf16({4, 16, 40}), f32({4, 16}), rows(), f32({4, 8, 16})}, sample_tile(2, 3)},
                 {{bf16({4, 8, 16}), bf16({4, 16, 32}), f32({4, 16}), rows()}, sample_tile(0, 2)}},
     .kind = Kind::product},
    {.name = "expert_linear_dx_sums",
     .required = 3,
     .most = 4,
     .infer = infer_dx,
     .work = work_dx,
     .aliases = {{0, 3}},
     .samples = {{{f32({4, 8, 8}), f32({4, 16, 24}), rows()}, sample_tile(0, 2)},
                 {{f32({4, 8, 5}), f32({4, 15, 20}), rows(), f32({4, 8, 20})}, sample_tile(2, 3)},
                 {{bf16({4, 8, 16}), bf16({4, 40, 24}), rows(), f32({4, 8, 24})}, sample_tile(1, 3)}},
     .kind = Kind::product},
    {.name = "round_rows",
     .required = 2,
     .infer = infer_round,
     .work = work_round,
     .samples = {{{f32({4, 8, 37}), rows()}, {{"capacity", 8}, {"tokens", 16}}}},
     .kind = Kind::part_helper},
};

}  // namespace

std::span<const OpDef> expert_sums_ops() { return table; }

}  // namespace lancet::ops
