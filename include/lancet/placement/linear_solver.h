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
  double seconds = 60;          // wall time; what is found by then is the answer
  double gap = 0;               // stops once (answer - bound) / answer is at most this; 0: only by the proof
  double bound = -unbounded;    // no answer is known to be smaller: one as small is the best, but for 1e-6 of it
  std::vector<double> start{};  // by column, of a known answer; only those of integer columns are read. Empty: none
};

struct LinearAnswer {
  enum class Status {
    optimal,    // values are proven best, within the gap
    feasible,   // the solver ended without the proof: values are the best that was found
    nothing,    // the solver ended without an answer and without a proof
    infeasible  // there is no answer, or none that is least
  };
  Status status = Status::nothing;
  std::vector<double> values;                // by column; integer ones are rounded. Empty unless optimal or feasible
  std::vector<std::vector<double>> earlier;  // the other answers that were found on the way, in their order
  double objective = 0;                      // of the values
  double bound = -unbounded;                 // no answer is smaller, as proven
  double seconds = 0;
  bool is_time_over = false;  // the time ended the search; if it is not optimal or infeasible either, CBC has failed
};

// One thread and no random choice: the same model gives the same answer unless the time ends first. CBC runs in a child
// process, since a failed assertion in it would end the program; whatever ends the child, the answers and the bounds
// that it has found by then are kept.
// Config error of one line: the program was built without CBC. InternalError: no child process can be started.
Result<LinearAnswer> solve_linear(const LinearModel& model, const LinearOptions& options = {});

}  // namespace lancet::placement
