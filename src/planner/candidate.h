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

// The program in the order of a list schedule, over all of it or within [begin, end) alone.
struct Scheduled {
  ir::Program program;
  std::vector<cost::Load> loads;
};
Scheduled scheduled(const ir::Program& program, const std::vector<cost::Load>& loads, const ListOptions& options);
Scheduled scheduled_within(const ir::Program& program, const std::vector<cost::Load>& loads, std::size_t begin,
                           std::size_t end, const ListOptions& options);

}  // namespace lancet::planner
