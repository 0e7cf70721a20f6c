// Chooses how the all-to-alls of a step travel between GPUs that can access each other's memory: through windows, where
// no host waits for counts, or as messages, which may fill the links better. The costs choose for each all-to-all
// separately, since the messages of one step differ in size (parts). The choice is written into the plan, which rank 0
// makes, so all ranks agree.
#pragma once
#include <string>

#include "lancet/cost/costs.h"

namespace lancet::schedule {

// Marks the all-to-alls that cost::takes_window() refuses; those whose cost is known for one way only stay unmarked.
// This is the last pass over the Program: other passes do not know the mark.
void choose_all_to_alls(const cost::Costs& costs, ir::Program& program);

// The choice for a step of several ranks, with the sums of the costs of its all-to-alls.
struct AllToAllChoice {
  int known = 0;                                  // all-to-alls whose cost is known for both ways
  int windows = 0;                                // of these, those that travel through windows
  double ms = 0, windows_ms = 0, counted_ms = 0;  // as chosen, all through windows, all as messages
};
AllToAllChoice all_to_all_choice(const cost::Costs& costs, const ir::Program& program);
// "3 of 4 all-to-alls through windows: 0.31 ms a step, all 0.35 ms, none 0.42 ms"; empty where nothing is known.
std::string to_string(const AllToAllChoice& choice);

// True if some all-to-all of several ranks is not marked, so that it would travel through windows.
bool wants_window(const ir::Program& program);

}  // namespace lancet::schedule
