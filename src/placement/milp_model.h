// Moirai's mixed-integer program as rows and columns.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "lancet/placement/linear_solver.h"
#include "lancet/placement/problem.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement {

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
  // Adds the pairs of tasks that take one device or link at the same time in an answer; returns the number of pairs.
  int add_conflicts(const std::vector<double>& values);
  void add_all_pairs();
  void tighten(double makespan_ms);  // to placements that are not longer than that

 private:
  class Builder;
  const Problem& problem_;
  const std::unique_ptr<Builder> builder_;
};

// Pairs of ops, and of flows, that take one device or link at the same time in an answer; each ascending.
std::vector<std::pair<int, int>> milp_conflicts(const MilpModel& model, const Problem& problem,
                                                const std::vector<double>& values);

// The time of all ops, each on its slowest device, and of all flows, each on its slowest path, one after another. If a
// placement exists, one that is not longer does.
double serial_ms(const Problem& problem);

// The integer columns' values of a placement, for LinearOptions::start.
std::vector<double> milp_start(const MilpModel& model, const Problem& problem, Placement placement);

// The device of each op in an answer.
std::vector<int> milp_devices(const MilpModel& model, const Problem& problem, const std::vector<double>& values);

// The placement of an answer: its assignment and its order, by our own timetable.
Placement milp_placement(const MilpModel& model, const Problem& problem, const std::vector<double>& values);

}  // namespace lancet::placement
