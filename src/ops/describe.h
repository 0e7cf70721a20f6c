// Helpers of the op descriptions: checks of operand types and sums of bytes and rows.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lancet/ir/route_layout.h"
#include "lancet/ops/op.h"

namespace lancet::ops {

using Types = std::vector<TensorType>;
using Inferred = Result<Types>;

inline Error expected(std::string_view what) { return internal_error(fmt::format("expected {}", what)); }

inline bool is_activation(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }
inline bool is_vector(const TensorType& type, std::int64_t extent) {
  return type.dtype == DType::f32 && type.shape == Shape{extent};
}

inline double bytes_of(const OpInput& in) {
  double total = 0;
  for (const TensorType& type : in.operands) total += double(ir::bytes(type));
  return total;
}

// The expected number of filled rows of a buffer of `all` rows: the attribute tokens, the tokens of a rank if they
// spread evenly over the experts and none is dropped; `all` without the attribute.
inline std::int64_t expected_rows(const OpInput& in, std::int64_t all) {
  return std::min(all, in.attributes.integer("tokens", all));
}

// The shape with another extent of its last axis.
inline Shape with_back(Shape shape, std::int64_t extent) {
  shape.set(-1, extent);
  return shape;
}

}  // namespace lancet::ops
