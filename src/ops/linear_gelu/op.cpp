// A product and the GELU behind it (or, backward, before it) as one op, for devices whose products do that in their
// epilogues: what went into GELU is not read again, and the gradient behind it is never written. The planner's pass
// `fuse` makes them of linear, expert_linear and gelu after autodiff, so they have no gradient rules.
//   linear_gelu(x [...,K], w [N,K] [, b f32[N]]) -> h = x w^T + b, y = gelu(h)
//   linear_dx_gelu(dy [...,N], w [N,K], h [...,K]) -> dh = (dy w) * gelu'(h)
//   expert_linear_gelu(x [E,R,K], w [E,N,K], b f32[E,N], rows) -> h, y           over filled rows
//   expert_linear_dx_gelu(dy [E,R,N], w [E,N,K], h [E,R,K], rows) -> dh
// GELU's own arithmetic is not in `work`: MFU counts products.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType &x = in.operands[0], &w = in.operands[1];
  if (!is_activation(x.dtype) || x.shape.rank() < 2) return expected("x [...,K] of f32 or bf16");
  if (w.dtype != x.dtype || w.shape.rank() != 2 || w.shape[1] != x.shape.back()) return expected("w [N,K] of x's type");
  if (in.operands.size() > 2 && !is_vector(in.operands[2], w.shape[0])) return expected("b f32[N]");
  const TensorType y{x.dtype, with_back(x.shape, w.shape[0])};
  return Types{y, y};
}

Inferred infer_dx(const OpInput& in) {
  const TensorType &dy = in.operands[0], &w = in.operands[1];
  if (!is_activation(dy.dtype) || dy.shape.rank() < 2) return expected("dy [...,N] of f32 or bf16");
  if (w.dtype != dy.dtype || w.shape.rank() != 2 || w.shape[0] != dy.shape.back())
    return expected("w [N,K] of dy's type");
  const TensorType dh{dy.dtype, with_back(dy.shape, w.shape[1])};
  if (in.operands[2] != dh) return expected("h like the result");
  return Types{dh};
}

bool is_rows(const TensorType& rows, std::int64_t experts) {
  return rows.dtype == DType::i32 && rows.shape.rank() == 2 && rows.shape[0] == experts && rows.shape[1] >= 2;
}

Inferred infer_expert(const OpInput& in) {
  const TensorType &x = in.operands[0], &w = in.operands[1], &b = in.operands[2];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [E,R,K] of f32 or bf16");
  if (w.dtype != x.dtype || w.shape.rank() != 3 || w.shape[0] != x.shape[0] || w.shape[2] != x.shape[2])
    return expected("w [E,N,K] of x's type");
  if (b != TensorType{DType::f32, {w.shape[0], w.shape[1]}}) return expected("b f32[E,N]");
  if (!is_rows(in.operands[3], x.shape[0])) return expected("rows i32[E,W+1]");
  const TensorType y{x.dtype, with_back(x.shape, w.shape[1])};
  return Types{y, y};
}

Inferred infer_expert_dx(const OpInput& in) {
  const TensorType &dy = in.operands[0], &w = in.operands[1];
  if (!is_activation(dy.dtype) || dy.shape.rank() != 3) return expected("dy [E,R,N] of f32 or bf16");
  if (w.dtype != dy.dtype || w.shape.rank() != 3 || w.shape[0] != dy.shape[0] || w.shape[1] != dy.shape[2])
    return expected("w [E,N,K] of dy's type");
  const TensorType dh{dy.dtype, with_back(dy.shape, w.shape[2])};
  if (in.operands[2] != dh) return expected("h like the result");
  if (!is_rows(in.operands[3], dy.shape[0])) return expected("rows i32[E,W+1]");
  return Types{dh};
}

// A row has `before` elements ahead of the product and `behind` after it; the latter are touched twice: GELU's argument
// and its result, or its argument and the gradient.
Work work_of(const OpInput& in, std::int64_t rows, std::int64_t before, std::int64_t behind) {
  const double elements = double(before + 2 * behind), size = size_of(in.operands[0].dtype);
  return {2 * double(rows) * double(before) * double(behind),
          double(rows) * elements * size + double(ir::bytes(in.operands[1]))};
}
Work work(const OpInput& in) {
  const Shape &x = in.operands[0].shape, &w = in.operands[1].shape;
  return work_of(in, expected_rows(in, x.rows()), w[-1], w[-2]);
}
Work work_dx(const OpInput& in) {
  const Shape &dy = in.operands[0].shape, &w = in.operands[1].shape;
  return work_of(in, expected_rows(in, dy.rows()), w[-2], w[-1]);
}

const Attributes sample_route{{"capacity", 8}, {"tokens", 16}};

const OpDef table[] = {
    {.name = "linear_gelu",
     .required = 2,
     .most = 3,
     .infer = infer,
     .work = work,
     .partition = {{{0, none, none}, {0, 0}}, {{1, none, none}, {1, 1}}, {{none, 0, 0}, {2, 2}}},
     .samples = {{{{{DType::f32, {2, 4, 24}}}, {{DType::f32, {16, 24}}}, {{DType::f32, {16}}}}, {}},
                 {{{{DType::f32, {4, 2, 7}}}, {{DType::f32, {6, 7}}}}, {}},
                 {{{{DType::bf16, {2, 4, 32}}}, {{DType::bf16, {48, 32}}}, {{DType::f32, {48}}}}, {}},
                 {{{{DType::bf16, {2, 3, 12}}}, {{DType::bf16, {18, 12}}}, {{DType::f32, {18}}}}, {}}},
     .kind = Kind::product},
    {.name = "linear_dx_gelu",
     .required = 3,
     .most = 3,
     .infer = infer_dx,
     .work = work_dx,
     .partition = {{{0, none, 0}, {0}}, {{1, none, 1}, {1}}, {{none, 1, 2}, {2}}},
     .samples = {{{{{DType::f32, {2, 4, 16}}}, {{DType::f32, {16, 24}}}, {{DType::f32, {2, 4, 24}}}}, {}},
                 {{{{DType::bf16, {2, 4, 48}}}, {{DType::bf16, {48, 32}}}, {{DType::bf16, {2, 4, 32}}}}, {}},
                 {{{{DType::bf16, {2, 3, 8}}}, {{DType::bf16, {8, 10}}}, {{DType::bf16, {2, 3, 10}}}}, {}}},
     .kind = Kind::product},
    {.name = "expert_linear_gelu",
     .required = 4,
     .most = 4,
     .infer = infer_expert,
     .work = work,
     .partition = {{{irregular, none, none, irregular}, {irregular, irregular}}, {{0, 0, 0, 0}, {0, 0}}},
     .samples = {{{{{DType::f32, {4, 8, 24}}},
                   {{DType::f32, {4, 16, 24}}},
                   {{DType::f32, {4, 16}}},
                   {{DType::i32, {4, 2}}, Fill::rows}},
                  sample_route},
                 {{{{DType::bf16, {4, 8, 32}}},
                   {{DType::bf16, {4, 16, 32}}},
                   {{DType::f32, {4, 16}}},
                   {{DType::i32, {4, 2}}, Fill::rows}},
                  sample_route}},
     .kind = Kind::product},
    {.name = "expert_linear_dx_gelu",
     .required = 4,
     .most = 4,
     .infer = infer_expert_dx,
     .work = work_dx,
     .partition = {{{irregular, none, irregular, irregular}, {irregular}}, {{0, 0, 0, 0}, {0}}},
     .samples = {{{{{DType::f32, {4, 8, 16}}},
                   {{DType::f32, {4, 16, 24}}},
                   {{DType::f32, {4, 8, 24}}},
                   {{DType::i32, {4, 2}}, Fill::rows}},
                  sample_route},
                 {{{{DType::bf16, {4, 8, 16}}},
                   {{DType::bf16, {4, 16, 32}}},
                   {{DType::bf16, {4, 8, 32}}},
                   {{DType::i32, {4, 2}}, Fill::rows}},
                  sample_route}},
     .kind = Kind::product},
};

}  // namespace

std::span<const OpDef> linear_gelu_ops() { return table; }

}  // namespace lancet::ops
