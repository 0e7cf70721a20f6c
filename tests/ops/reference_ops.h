// The ops once more, in double and as plain as their contracts (src/ops/*/op.cpp): what the kernels of every device are
// held against. Nothing of the project's arithmetic is used here.
#pragma once
#include <string_view>
#include <vector>

#include "lancet/ir/program.h"

namespace lancet::test {

struct DoubleTensor {
  ir::TensorType type;
  // Row-major. A route[T,E] is expert[T], slot[T] (-1: dropped), weight[T], begin[E], end[E].
  std::vector<double> values;

  const Shape& shape() const { return type.shape; }
  double& operator[](std::int64_t i) { return values[std::size_t(i)]; }
  double operator[](std::int64_t i) const { return values[std::size_t(i)]; }
};

// An op's call. A result's element that the op leaves as it is stays NaN. Operands that the op updates are written.
struct ReferenceCall {
  std::vector<DoubleTensor> operands;
  std::vector<DoubleTensor> results;
  const ir::Attributes& attributes;
  double length = 1;  // of the longest sum: rounding errors grow with its root
  // By result, where a reference knows better than the norm of the result: the sum of each element's |terms|.
  std::vector<std::vector<double>> terms = {};

  bool has(std::size_t operand) const { return operand < operands.size(); }
};

using Reference = void (*)(ReferenceCall&);

Reference find_reference(std::string_view op);  // null: none is written

}  // namespace lancet::test
