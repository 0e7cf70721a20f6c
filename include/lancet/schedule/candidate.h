// A schedule that a policy can choose: a Program in the order of its streams, the dependencies of its instructions, and
// their simulated times.
#pragma once
#include <string>
#include <vector>

#include "lancet/schedule/simulate.h"
#include "lancet/schedule/step.h"

namespace lancet::schedule {

struct Candidate {
  std::string how;  // the schedule in words, for reports
  ir::Program program;
  Dependencies needed;
  std::vector<cost::OpCost> op_costs;
  Timeline timeline;
  std::string why_not_across_steps = {};  // set by across_steps() where it leaves nothing to the next step
};

// The candidate of this program in its order, simulated.
Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::OpCost> op_costs,
                   Dependencies dependencies);

// Whether the candidate's arena is at most overlap.memory_factor times that of the step in turns, without parts.
bool fits_memory(const Step& step, const config::Overlap& overlap, const Candidate& candidate);

// Whether `a` is shorter than `b` by more than sums of times are rounded.
bool is_shorter(const Candidate& a, const Candidate& b);

// Whether a search for the shortest candidate that fits the memory takes `a` in the place of `best`.
bool is_better(const Step& step, const config::Overlap& overlap, const Candidate& a, const Candidate& best);

// The largest number of parts of an instruction.
int most_parts(const ir::Program& program);

}  // namespace lancet::schedule
