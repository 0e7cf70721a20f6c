// The ops again, in double and as plain as their contracts (src/ops/*/*/op.cpp); the kernels of every device are
// compared with them. They use none of the project's arithmetic.
#pragma once
#include <string_view>
#include <vector>

#include "lancet/ir/program.h"

namespace lancet::test {

struct DoubleTensor {
  ir::TensorType type;
  std::vector<double> values;  // row-major

  const Shape& shape() const { return type.shape; }
  double& operator[](std::int64_t i) { return values[std::size_t(i)]; }
  double operator[](std::int64_t i) const { return values[std::size_t(i)]; }
};

// A call of an op. Elements of results that the op does not write stay NaN. Operands that the op updates are written.
struct ReferenceCall {
  std::vector<DoubleTensor> operands;
  std::vector<DoubleTensor> results;
  const ir::Attributes& attributes;
  double length = 1;  // of the longest sum: rounding errors grow with its root
  // By result, the sum of each element's |terms|, if the reference knows more than the norm of the result.
  std::vector<std::vector<double>> terms = {};
  std::int64_t place = 0, shares = 1;  // which share of the op this is, by a placed row (ops/op.h)

  bool has(std::size_t operand) const { return operand < operands.size(); }
};

using Reference = void (*)(ReferenceCall&);

Reference find_reference(std::string_view op);  // null: no weights are written

}  // namespace lancet::test
