// What is known of the times of ops and flows in any placement that is not longer than a horizon.
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/placement/problem.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement {

inline std::size_t slot(int index) { return static_cast<std::size_t>(index); }

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

}  // namespace lancet::placement
