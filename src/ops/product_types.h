// Result types of dense and expert linear layers, shared with the ops that have GELU in their epilogues.
#pragma once
#include "describe.h"

namespace lancet::ops {

// True for rows i32[E,W+1], the filled ranges that all_to_all_counts finds (all_to_all/op.cpp).
inline bool is_rows(const TensorType& rows, std::int64_t experts) {
  return rows.dtype == DType::i32 && rows.shape.rank() == 2 && rows.shape[0] == experts && rows.shape[1] >= 2;
}

// The type of an instruction's columns of its result (OpDef::column_tiles): all, without the attribute.
inline Inferred columns_of(Inferred whole, const OpInput& in) {
  if (!whole.ok() || !in.attributes.has("columns")) return whole;
  const std::int64_t columns = in.attributes.integer("columns"), part = in.attributes.integer("part", 0);
  Shape& shape = (*whole)[0].shape;
  if (columns < 1 || part < 0 || (part + 1) * columns > shape.back()) return expected("columns within the result");
  shape = with_back(shape, columns);
  return whole;
}

// (x [...,K], w [N,K] [, b f32[N]]) -> y [...,N].
inline Inferred linear_types(const OpInput& in) {
  const TensorType &x = in.operands[0], &w = in.operands[1];
  if (!is_activation(x.dtype) || x.shape.rank() < 2) return expected("x [...,K] of f32 or bf16");
  if (w.dtype != x.dtype || w.shape.rank() != 2 || w.shape[1] != x.shape.back()) return expected("w [N,K] of x's type");
  if (in.operands.size() > 2 && !is_vector(in.operands[2], w.shape[0])) return expected("b f32[N]");
  return Types{{x.dtype, with_back(x.shape, w.shape[0])}};
}

// (dy [...,N], w [N,K]) -> dx [...,K].
inline Inferred linear_dx_types(const OpInput& in) {
  const TensorType &dy = in.operands[0], &w = in.operands[1];
  if (!is_activation(dy.dtype) || dy.shape.rank() < 2) return expected("dy [...,N] of f32 or bf16");
  if (w.dtype != dy.dtype || w.shape.rank() != 2 || w.shape[0] != dy.shape.back())
    return expected("w [N,K] of dy's type");
  return Types{{dy.dtype, with_back(dy.shape, w.shape[1])}};
}

// (x [E,R,K], w [E,N,K], b f32[E,N], rows) -> y [E,R,N].
inline Inferred expert_linear_types(const OpInput& in) {
  const TensorType &x = in.operands[0], &w = in.operands[1], &b = in.operands[2];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [E,R,K] of f32 or bf16");
  if (w.dtype != x.dtype || w.shape.rank() != 3 || w.shape[0] != x.shape[0] || w.shape[2] != x.shape[2])
    return expected("w [E,N,K] of x's type");
  if (b != TensorType{DType::f32, {w.shape[0], w.shape[1]}}) return expected("b f32[E,N]");
  if (!is_rows(in.operands[3], x.shape[0])) return expected("rows i32[E,W+1]");
  return Types{{x.dtype, with_back(x.shape, w.shape[1])}};
}

// (dy [E,R,N], w [E,N,K], ..., rows) -> dx [E,R,K]; rows is the last operand.
inline Inferred expert_linear_dx_types(const OpInput& in) {
  const TensorType &dy = in.operands[0], &w = in.operands[1];
  if (!is_activation(dy.dtype) || dy.shape.rank() != 3) return expected("dy [E,R,N] of f32 or bf16");
  if (w.dtype != dy.dtype || w.shape.rank() != 3 || w.shape[0] != dy.shape[0] || w.shape[1] != dy.shape[2])
    return expected("w [E,N,K] of dy's type");
  if (!is_rows(in.operands.back(), dy.shape[0])) return expected("rows i32[E,W+1]");
  return Types{{dy.dtype, with_back(dy.shape, w.shape[2])}};
}

}  // namespace lancet::ops
