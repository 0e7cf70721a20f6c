// What the descriptions of ops share: checks of operand types and the sums of their work.
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

// Filled rows of a buffer of `all`: attribute tokens, what a rank handles where tokens spread evenly over the experts
// and none is dropped; all where it is not said.
inline std::int64_t expected_rows(const OpInput& in, std::int64_t all) {
  return std::min(all, in.attributes.integer("tokens", all));
}

// The last axis replaced.
inline Shape with_back(Shape shape, std::int64_t extent) {
  shape.set(-1, extent);
  return shape;
}

}  // namespace lancet::ops
