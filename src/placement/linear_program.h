// A linear program: columns x within bounds, and rows of sums over them within bounds; the sum of cost * x is least.
#pragma once
#include <limits>
#include <utility>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::placement {

inline constexpr double unbounded = std::numeric_limits<double>::infinity();

class LinearProgram {
 public:
  int add_column(double lower, double upper, double cost = 0);  // its index
  void add_row(double lower, double upper, std::vector<std::pair<int, double>> terms);

  struct Column {
    double lower, upper, cost;
  };
  struct Row {
    double lower, upper;
    std::vector<std::pair<int, double>> terms;  // column and coefficient
  };
  std::vector<Column> columns;
  std::vector<Row> rows;
};

// The columns of an optimum. Config errors: this build has no solver; there is no optimum.
Result<std::vector<double>> solve(const LinearProgram& program);

}  // namespace lancet::placement
