// Solves linear and mixed-integer programs with CBC (Forrest and Lougee-Heimer, 2005), if the build has it.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::placement {

// A linear or mixed-integer linear program as data: minimise a sum over columns within bounds of columns and rows.
inline constexpr double unbounded = std::numeric_limits<double>::infinity();

struct Term {
  int column = 0;
  double factor = 0;
};

struct LinearModel {
  // A variable.
  struct Column {
    double lower = 0, upper = unbounded;
    double cost = 0;  // its factor in the sum that is minimised
    bool integer = false;
  };
  // lower <= sum of the terms <= upper. A column occurs once at most.
  struct Row {
    double lower = -unbounded, upper = unbounded;
    std::vector<Term> terms;
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  // Returns the new column's index.
  int add_column(Column column);
  // Adds the terms of equal columns up and leaves out those of factor 0; a row without terms is left out.
  void add_row(double lower, double upper, std::vector<Term> terms);
};

// The solver's name and version; empty: the program was built without one, and solve_linear() returns an error.
std::string linear_solver();

struct LinearOptions {
  double seconds = 60;          // wall time; what is found by then is the answer
  double bound = -unbounded;    // no answer is known to be smaller: one as small is the best, but for 1e-6 of it
  std::vector<double> start{};  // by column, of a known answer; only those of integer columns are read. Empty: none
};

struct LinearAnswer {
  enum class Status {
    optimal,    // values are proven best
    feasible,   // the solver ended without the proof: values are the best that was found
    nothing,    // the solver ended without an answer and without a proof
    infeasible  // there is no answer, or none that is least
  };
  Status status = Status::nothing;
  std::vector<double> values;                // by column; integer ones are rounded. Empty unless optimal or feasible
  std::vector<std::vector<double>> earlier;  // the other answers that were found on the way, in their order
  double objective = 0;                      // of the values
  double bound = -unbounded;                 // no answer is smaller, as proven
  bool is_time_over = false;  // the time ended the search; if it is not optimal or infeasible either, CBC has failed
};

// One thread and no random choice: the same model gives the same answer unless the time ends first. CBC runs in a child
// process, since a failed assertion in it would end the program; whatever ends the child, the answers and the bounds
// that it has found by then are kept.
// Config error of one line: the program was built without CBC. InternalError: no child process can be started.
Result<LinearAnswer> solve_linear(const LinearModel& model, const LinearOptions& options = {});

}  // namespace lancet::placement
