// Solves linear and mixed-integer programs with CBC (Forrest and Lougee-Heimer, 2005), if the build has it.
#pragma once
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/placement/linear_model.h"

namespace lancet::placement {

// The solver's name and version; empty: the program was built without one, and solve_linear() returns an error.
std::string linear_solver();

struct LinearOptions {
  double seconds = 60;          // wall time. CBC checks it between its own steps; ten seconds later it is stopped
  double gap = 0;               // stops once (answer - bound) / answer is at most this; 0: only by the proof
  std::vector<double> start{};  // by column, of a known answer; only those of integer columns are read. Empty: none
};

struct LinearAnswer {
  enum class Status {
    optimal,    // values are proven best, within the gap
    feasible,   // the time was over: values are the best that was found
    nothing,    // the time was over, or CBC ended by a fault of its own, and no answer was found
    infeasible  // there is no answer, or none that is least
  };
  Status status = Status::nothing;
  std::vector<double> values;  // by column; integer ones are rounded. Empty unless optimal or feasible
  double objective = 0;        // of the values
  double bound = -unbounded;   // no answer is smaller, as proven
  double seconds = 0;
};

// One thread and no random choice: the same model gives the same answer unless the time ends first. CBC runs in a child
// process, since a failed assertion in it would end the program.
// Config error of one line: the program was built without CBC. InternalError: no child process can be started.
Result<LinearAnswer> solve_linear(const LinearModel& model, const LinearOptions& options = {});

}  // namespace lancet::placement
