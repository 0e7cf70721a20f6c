// The one simulator of placements. Ops run on devices and flows on links in the order in which they are handed over,
// each as early as what ran before leaves room (Moirai, section III-D: a device runs one op at a time, its uplink and
// its downlink one flow each). An order of all ops and flows by their starts in any timetable gives one whose tasks
// start no later, so some order gives the shortest timetable of a placement.
#pragma once
#include <limits>
#include <vector>

#include "lancet/placement/problem.h"

namespace lancet::placement {

inline constexpr double never = std::numeric_limits<double>::infinity();

// By op, ascending: the indices of the flows that enter and leave it.
struct FlowsOfOps {
  std::vector<std::vector<int>> in, out;
};
FlowsOfOps flows_of_ops(const Problem& problem);

// What is placed as a whole: a group of ops, or an op in no group. Units are in the order of their first ops.
struct Units {
  std::vector<int> of;                // by op
  std::vector<std::vector<int>> ops;  // by unit, ascending
  std::vector<double> mb;             // by unit: the sum over its ops
  int count() const { return static_cast<int>(ops.size()); }
};
Units units_of(const Problem& problem);

// When a device or a link is busy: intervals that do not overlap, ascending.
class Timeline {
 public:
  double earliest(double from, double length) const;  // start of the first gap of that length from then on
  void take(Interval interval);
  void release(Interval interval);  // one that was taken
  void clear() { busy_.clear(); }

 private:
  std::vector<Interval> busy_;
};

class Timetable {
 public:
  explicit Timetable(const Problem& problem);  // which outlives it
  void clear();
  // Runs an op whose predecessors have all run: first the flows that enter it and did not run yet, those of the
  // earliest makers first, then the op. Returns its end.
  double run(int op, int device);
  // Runs a flow to a device ahead of its reader, which must then run there. Its maker has run. Returns its end.
  double run_flow(int flow, int to_device);
  // Takes back the op that ran last, with the flows that its run() added.
  void undo();
  // The start that run() would give the op.
  double start_on(int op, int device);

  double end(int op) const { return answer_.ops[static_cast<std::size_t>(op)].end; }
  double start(int op) const { return answer_.ops[static_cast<std::size_t>(op)].start; }
  int device(int op) const { return answer_.device[static_cast<std::size_t>(op)]; }
  bool has_run(int op) const { return device(op) >= 0; }
  double makespan() const;      // of what has run
  Placement placement() const;  // of all ops

 private:
  Interval place_flow(int flow, int to_device);
  void release_flow(int flow, int to_device);

  const Problem& problem_;
  const FlowsOfOps flows_;
  std::vector<Timeline> devices_, up_, down_;
  std::vector<bool> flow_ran_;
  Placement answer_;
  struct Step {
    int op;
    std::size_t flows;  // of flow_log_, before it
  };
  std::vector<Step> log_;
  std::vector<int> flow_log_;
  std::vector<int> entering_;  // scratch
};

// The timetable of an assignment. order: all ops, each after its predecessors; flows may be listed as op_count() +
// their index, after their maker and before their reader. InternalError: an op before one of its predecessors.
Placement timetable(const Problem& problem, const std::vector<int>& device, const std::vector<int>& order);

// Ops and flows by their start, as timetable() takes them; equal starts keep precedence.
std::vector<int> order_of(const Problem& problem, const Placement& placement);

double mean_ms(const Op& op);                                   // over the devices
double mean_flow_ms(const Problem& problem, const Flow& flow);  // over the pairs of devices; 0 without one

// By op: the longest chain of ops and flows from its start to the end of the graph. device: of each op; empty: with
// those means. order_by() lists the ops by it, descending, equal ones by their index: an order of precedence.
std::vector<double> upward_ranks(const Problem& problem, const FlowsOfOps& flows, const std::vector<int>& device = {});
std::vector<int> order_by(const std::vector<double>& ranks);

}  // namespace lancet::placement
