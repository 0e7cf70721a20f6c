// Solvers: known list schedulers, our own search, and Moirai's mixed-integer program. Each returns a placement that
// keeps within the memory, or a config error of one line if it finds none.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/placement/problem.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement {

// Devices in their order take equal shares of the units in the order of their first ops.
Result<Placement> even(const Problem& problem);
// Heterogeneous Earliest Finish Time (Topcuoglu et al., 2002): the op of the greatest upward rank goes where it ends
// first, into gaps, too.
Result<Placement> heft(const Problem& problem);
// Earliest Task First (Hwang et al., 1989): of all ready ops and devices the pair that starts first; of equal ones the
// op of the greatest upward rank, then the device on which it ends first.
Result<Placement> etf(const Problem& problem);
// Small Communication Time with memory (Hanen and Munier, 1995; Baechi: Jeon et al., 2020): a linear program gives each
// op at most one favourite child and each op at most one favourite parent; then ETF, in which a device that has just
// run an op waits for its favourite child, unless another op could start on it at once wherever its operands were made.
// Config error, besides those above: the program has no solver of linear programs.
Result<Placement> msct(const Problem& problem);
// Generalized Earliest Time First (Su et al., 2020): a linear program gives each op a group of devices of like speed;
// then ETF within the groups. An op that its group cannot hold may go to any device. Config error as msct().
Result<Placement> getf(const Problem& problem);

struct SearchOptions {
  double seconds = 2;              // at most, but the solvers that it starts from always end, and moves get half of it
  std::int64_t moves = 1'000'000;  // at most; a search that ends by them gives the same answer in every run
  std::uint64_t seed = 1;
};
// Moves of ops between devices and in the order, from the best of the solvers above: never worse than any of them.
Result<Placement> list_search(const Problem& problem, const SearchOptions& options = {});

// For each order of up to 4 devices, for more only that of their speeds: the device of each unit, where the first
// devices of the order have one run each, of the shortest sum of the times of ops and of the flows over the borders.
// Orders without a split that fits the memories are left out. Exact for a chain of ops.
std::vector<std::vector<int>> contiguous_splits(const Problem& problem, const Units& units);

// No placement has a smaller makespan: the longest chain of ops on their fastest devices without flows, or the time in
// which all devices together could do all ops, each split among them at will, whichever is larger.
double lower_bound_ms(const Problem& problem);

// The solvers above but list_search(), by the words of the command line.
struct Solver {
  std::string_view name, what;
  Result<Placement> (*solve)(const Problem&);
};
std::span<const Solver> list_solvers();

// Config errors of problems that no solver can answer: no device holds an op, or the devices' memory together is less
// than the ops need. The message names the op, or the two sums.
Status check_problem(const Problem& problem);

// Moirai's mixed-integer linear program of device placement (Moirai, 2023, section III-D, equations 4 to 8), solved
// with CBC. It finds the placement of the least makespan and proves how far below any other could be.
//
// Memory is the sum of what the ops of a device hold, and one input is in flight: what the program cannot express, the
// list search does.
struct MilpOptions {
  double seconds = 60;  // wall time, of building the program as well
  // A placement without violations, of any heuristic: the shorter its makespan, the fewer orders the program has to
  // decide. Null: the time of all ops and flows one by one is the bound.
  const Placement* start = nullptr;
};

struct MilpAnswer {
  // What ended the program.
  enum class End {
    proof,       // the makespan is the bound
    time,        // seconds
    tolerances,  // CBC holds that there is no placement, or finds none that keeps to the rules without its tolerances
    fault        // CBC failed
  };
  Placement placement;  // its makespan is at most the start's
  double bound_ms = 0;  // no placement has a smaller makespan
  End end = End::time;
  double gap() const { return placement.makespan_ms > 0 ? 1 - bound_ms / placement.makespan_ms : 0; }
};

// Config errors, one line each: the program was built without CBC; no placement exists (which is proven); none was
// found, and there was no start.
Result<MilpAnswer> solve_milp(const Problem& problem, const MilpOptions& options = {});

}  // namespace lancet::placement
