// Schedules that a policy chooses among: a Program in the order of its lanes, what its instructions wait for, and when
// the simulator says they run.
#pragma once
#include <string>
#include <vector>

#include "lancet/planner/simulate.h"
#include "list_schedule.h"
#include "step.h"

namespace lancet::planner {

struct Candidate {
  std::string how;  // in words, for reports
  ir::Program program;
  Needed needed;
  std::vector<cost::Load> loads;
  Timeline timeline;
};

// No overlap of compute and all-to-all, but among the parts of one instruction's neighbours (`parts` attribute): each
// waits for the last of the other lane before it.
Needed taking_turns(const ir::Program& program, Needed dependencies);

// The wire is never shared: what one communication lane sends waits for what the other sent before it in the order.
Needed one_at_a_time_on_the_wire(const ir::Program& program, Needed dependencies);

// The program as it stands.
Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::Load> loads,
                   Needed needed);

// Bytes of the arena's tensors that are alive at once when the instructions run one by one.
std::int64_t peak_bytes(const ir::Program& program);

// The orders that list scheduling gives a program, over all of it or over the instructions [begin, end) alone, the
// others staying in their places.
class Orders {
 public:
  Orders(ir::Program program, std::vector<cost::Load> loads, std::size_t begin, std::size_t end);
  Orders(ir::Program program, std::vector<cost::Load> loads);

  struct Found {
    double makespan = 0;          // with nothing taken from each other
    std::int64_t peak_bytes = 0;  // of the arena's tensors that are alive at once
    Order order;
  };
  Found find(const ListOptions& options) const;
  // The program in that order.
  ir::Program program(const Order& order) const { return permuted(program_, order); }
  std::vector<cost::Load> loads(const Order& order) const { return permuted(loads_, order); }
  Needed needed(const Order& order) const;  // its dependencies

 private:
  ir::Program program_;
  std::vector<cost::Load> loads_;
  std::size_t begin_;
  Needed dependencies_;
  std::vector<Job> jobs_;
  std::vector<std::int64_t> block_bytes_;
};

}  // namespace lancet::planner
