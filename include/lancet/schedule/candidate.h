// Schedules that a policy chooses among: a Program in the order of its streams, what its instructions wait for, and when
// the simulator says they run.
#pragma once
#include <string>
#include <vector>

#include "lancet/schedule/simulate.h"
#include "lancet/schedule/step.h"

namespace lancet::schedule {

struct Candidate {
  std::string how;  // in words, for reports
  ir::Program program;
  Dependencies needed;
  std::vector<cost::OpCost> op_costs;
  Timeline timeline;
};

// No overlap of compute and all-to-all, but among the parts of one instruction's neighbours (`parts` attribute): each
// waits for the last of the other stream before it.
Dependencies turns(const ir::Program& program, Dependencies dependencies);

// The wire is never shared: what one communication stream sends waits for what the other sent before it in the order.
Dependencies one_message_at_a_time(const ir::Program& program, Dependencies dependencies);

// The program as it stands.
Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::OpCost> op_costs,
                   Dependencies needed);

// Bytes of the arena's tensors that are alive at once when the instructions run one by one.
std::int64_t peak_bytes(const ir::Program& program);

}  // namespace lancet::schedule
