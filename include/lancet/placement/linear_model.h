// A linear or mixed-integer linear program as data: minimise a sum over columns within bounds of columns and rows.
#pragma once
#include <limits>
#include <string>
#include <vector>

namespace lancet::placement {

inline constexpr double unbounded = std::numeric_limits<double>::infinity();

struct Term {
  int column = 0;
  double factor = 0;
};

struct LinearModel {
  // A variable. Names are unique and have letters, digits, `_` and no blank: solvers and text identify columns by them.
  struct Column {
    std::string name;
    double lower = 0, upper = unbounded;
    double cost = 0;  // its factor in the sum that is minimised
    bool integer = false;
  };
  // lower <= sum of the terms <= upper. A column occurs once at most.
  struct Row {
    std::string name;
    double lower = -unbounded, upper = unbounded;
    std::vector<Term> terms;
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  // Returns the new column's index.
  int add_column(Column column);
  // Adds the terms of equal columns up and leaves out those of factor 0; a row without terms is left out.
  void add_row(std::string name, double lower, double upper, std::vector<Term> terms);
  int integer_count() const;
  // The model in CPLEX's LP format, which CBC, GLPK and others read. A row with two different bounds becomes two.
  std::string text() const;
};

}  // namespace lancet::placement
