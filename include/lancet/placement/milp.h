// Moirai's mixed-integer linear program of device placement (Moirai, 2023, section III-D, equations 4 to 8), solved
// with CBC. It finds the placement of the least makespan and proves how far below any other could be.
//
// Memory is the sum of what the ops of a device hold, and one input is in flight: what the program cannot express, the
// list search does (solvers.h).
#pragma once
#include "lancet/base/result.h"
#include "lancet/placement/problem.h"

namespace lancet::placement {

struct MilpOptions {
  double seconds = 60;  // wall time, of building the program as well
  double gap = 0;       // stops once (makespan - bound) / makespan is at most this
  // A placement without violations, of any heuristic: the shorter its makespan, the fewer orders the program has to
  // decide. Null: the time of all ops and flows one by one is the bound.
  const Placement* start = nullptr;
};

struct MilpAnswer {
  // What ended the program.
  enum class End {
    proof,       // the makespan is within the gap of the bound
    time,        // seconds
    tolerances,  // CBC holds that there is no placement, or finds none that keeps to the rules without its tolerances
    fault        // CBC failed
  };
  Placement placement;  // its makespan is at most the start's
  double bound_ms = 0;  // no placement has a smaller makespan
  End end = End::time;
  double seconds = 0;                       // of building and solving
  int columns = 0, integers = 0, rows = 0;  // of the program
  double gap() const { return placement.makespan_ms > 0 ? 1 - bound_ms / placement.makespan_ms : 0; }
};

// Config errors, one line each: the program was built without CBC; no placement exists (which is proven); none was
// found, and there was no start.
Result<MilpAnswer> solve_milp(const Problem& problem, const MilpOptions& options = {});

}  // namespace lancet::placement
