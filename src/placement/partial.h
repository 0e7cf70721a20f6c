// A placement that a list scheduler makes op by op: the timetable of what is placed, and the memory that is left.
#pragma once
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/placement/timetable.h"
#include "linked.h"

namespace lancet::placement {

class Partial {
 public:
  explicit Partial(const Problem& problem);  // which outlives it
  // True if the op may run there: its unit is there already, or is nowhere yet, fits into the memory that is left, and
  // is not parted there from others (Choices).
  bool admits(int op, int device) const;
  // Runs an admitted op; its unit takes its memory with the first of its ops. Returns the end; `never` if a flow has no
  // path, and then nothing has changed.
  double run(int op, int device);
  double start_on(int op, int device) { return admits(op, device) ? table_.start_on(op, device) : never; }
  double end_on(int op, int device);
  bool is_ready(int op) const;  // it has not run, and all its predecessors have

  const Problem& problem() const { return problem_; }
  const FlowsOfOps& flows() const { return flows_; }
  const Timetable& table() const { return table_; }
  Placement placement() const { return table_.placement(); }

 private:
  const Problem& problem_;
  const FlowsOfOps flows_;
  const Units units_;
  Choices choices_;
  std::vector<int> device_of_unit_;  // -1: nowhere yet
  std::vector<double> left_mb_;      // by device
  Timetable table_;
};

// The error of a list scheduler that finds no device for an op.
Error no_device_left(std::string_view solver, const Problem& problem, int op);

}  // namespace lancet::placement
