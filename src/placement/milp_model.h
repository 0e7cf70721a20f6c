// Moirai's mixed-integer program as rows and columns.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lancet/placement/linear_solver.h"
#include "lancet/placement/problem.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement {

inline std::size_t slot(int index) { return static_cast<std::size_t>(index); }

// What is known of the times of ops and flows in any placement that is not longer than a horizon.
struct Windows {
  // [op][device]: the earliest start there, and the least time from its start there to the end of the last op.
  // Infinite where the op cannot be.
  std::vector<std::vector<double>> head, tail;
  std::vector<std::vector<bool>> may;  // [unit][device]: false if a placement with the unit there is too long
  // By task (an op, or op_count() + a flow): the earliest start on any device, and the least time from its end to the
  // end of the last op.
  std::vector<double> earliest, after;
  double bound_ms = 0;  // the longest chain, each op and each flow on its best devices
};
Windows windows(const Problem& problem, const Units& units, double horizon_ms);

// Which tasks run before which others in every placement: of ops and flows, by true reachability.
class Reachability {
 public:
  explicit Reachability(const Problem& problem);
  bool precedes(int task, int other) const {
    return (bits_[static_cast<std::size_t>(task)][static_cast<std::size_t>(other) / 64] >> (other % 64)) & 1;
  }

 private:
  std::vector<std::vector<std::uint64_t>> bits_;  // [task]: those after it
};

// Two ops, or two flows, of which neither precedes the other. Column `before` says that the first one, where both take
// one device or link, ends before the second one starts, column `after` the reverse; -1 if that order is too late.
struct MilpPair {
  int first = 0, second = 0;  // ops; a flow is op_count() + its index
  int before = -1, after = -1;
};

struct MilpModel {
  LinearModel linear;
  Units units;
  std::vector<std::vector<int>> on;  // [unit][device]: column x, 1 if the unit is on the device
  std::vector<int> start;            // by op, then by flow: column of its start; -1: a flow within a unit
  std::vector<MilpPair> pairs;
  std::vector<int> twin;  // by device: the previous device that is its equal in all things, or -1
  int makespan = -1;      // column
  double scale = 1;       // milliseconds of one unit of the model's time; the horizon is 100 units
  double bound_ms = 0;    // no placement is shorter, known without solving
};

// The program without the rows of pairs, (6) and (8) of Moirai, which are most of the whole one's, and those that are
// added. horizon_ms: the makespan of a known placement, or serial_ms(). The program has every placement that is not
// longer, up to the numbers of equal devices; whatever pairs it lacks, its minimum is a bound of their makespans.
class MilpProgram {
 public:
  MilpProgram(const Problem& problem, double horizon_ms);  // of a problem that outlives it
  ~MilpProgram();
  const MilpModel& model() const;
  // Adds the rows of a pair of ops or of flows. Does nothing if one of them precedes the other or they are a pair
  // already. Returns whether that adds rows.
  bool add_pair(int first, int second);
  void tighten(double makespan_ms);  // to placements that are not longer than that

 private:
  class Builder;
  const std::unique_ptr<Builder> builder_;
};

// The time of all ops, each on its slowest device, and of all flows, each on its slowest path, one after another. If a
// placement exists, one that is not longer does.
double serial_ms(const Problem& problem);

// The integer columns' values of a placement, for LinearOptions::start.
std::vector<double> milp_start(const MilpModel& model, const Problem& problem, Placement placement);

// The placement of an answer: its assignment and its order, by our own timetable.
Placement milp_placement(const MilpModel& model, const Problem& problem, const std::vector<double>& values);

}  // namespace lancet::placement
