// Ops of these tests alone, beside those of the catalogue (tiles.cmake). W ranks; R rows of each rank for every rank.
// push_rows(x f32[W,R,K]) -> y f32[1,W*R,K], signals: rank r's x[p] become rows [r R, (r+1) R) of rank p's y.
// push_beside(x): the same on the compute stream.
// arriving_product(x f32[1,W*R,K], signals, w f32[N,K], rows i32[1,W+1]) -> f32[1,W*R,N] = x w^T, tile by tile as the
//   rows arrive.
// pulling_product(x f32[T,K], w f32[N,K]) -> f32[T,N] = x w^T of which half of x comes from another rank.
// scribble(x) -> y, like x: large numbers where other plans have their signals.
#include <span>

#include "lancet/ir/readiness.h"
#include "lancet/ops/op.h"

namespace lancet::ops {
namespace {

using Inferred = Result<std::vector<TensorType>>;

Inferred infer_push(const OpInput& in) {
  const Shape& x = in.operands[0].shape;
  LANCET_ASSIGN(const std::int64_t rows, ir::rows_per_signal(in.attributes));
  const TensorType y{DType::f32, {1, x[0] * x[1], x[2]}};
  return std::vector<TensorType>{y, {DType::signals, {ir::signal_count(y.shape, rows)}}};
}

Inferred infer_arriving(const OpInput& in) {
  if (in.operands[1].dtype != DType::signals) return internal_error("expected signals of x");
  return std::vector<TensorType>{{DType::f32, {1, in.operands[0].shape[1], in.operands[2].shape[0]}}};
}

Inferred infer_pulling(const OpInput& in) {
  return std::vector<TensorType>{{DType::f32, {in.operands[0].shape[0], in.operands[1].shape[0]}}};
}
Work work_pulling(const OpInput& in) {
  const Shape &x = in.operands[0].shape, &w = in.operands[1].shape;
  const auto bytes = double(ir::bytes(in.operands[0]));
  return {.flops = 2.0 * double(x[0] * x[1] * w[0]), .bytes = bytes, .sent = bytes / 2};
}

Inferred infer_scribble(const OpInput& in) { return std::vector<TensorType>{in.operands[0]}; }

const OpDef table[] = {
    {.name = "push_rows", .required = 1, .infer = infer_push, .stream = ir::Stream::expert, .kind = Kind::all_to_all},
    {.name = "push_beside", .required = 1, .infer = infer_push, .kind = Kind::product},
    {.name = "arriving_product", .required = 4, .infer = infer_arriving, .kind = Kind::product},
    {.name = "pulling_product", .required = 2, .infer = infer_pulling, .work = work_pulling, .kind = Kind::product},
    {.name = "scribble", .required = 1, .infer = infer_scribble},
};

}  // namespace

std::span<const OpDef> tiles_ops() { return table; }

}  // namespace lancet::ops
