// Which way the all-to-alls of a step take between GPUs that reach each other's memory: through windows, where no host
// waits for counts, or as messages, which may fill the links better. Each exchange takes the one that the costs find
// faster, since messages of one step differ in size (parts), and what is right for one is not for another. The choice
// is written into the plan, which rank 0 makes, so no two ranks differ.
#pragma once
#include <string>

#include "lancet/cost/costs.h"

namespace lancet::schedule {

// Marks the all-to-alls that cost::takes_window() refuses; those of which the costs know one way only stay unmarked. To be
// done last: passes do not know the mark.
void choose_all_to_alls(const cost::Costs& costs, ir::Program& program);

// What the all-to-alls of a step, of several ranks, come to, one after the other.
struct AllToAllChoice {
  int known = 0;                                  // all-to-alls of which the costs know both ways
  int windows = 0;                                // of these, those that take the windows
  double ms = 0, windows_ms = 0, counted_ms = 0;  // as chosen, all through windows, all as messages
};
AllToAllChoice all_to_all_choice(const cost::Costs& costs, const ir::Program& program);
// "3 of 4 all-to-alls through windows: 0.31 ms a step, all 0.35 ms, none 0.42 ms"; empty where nothing is known.
std::string to_string(const AllToAllChoice& choice);

// Whether any all-to-all of several ranks is left that windows would serve.
bool wants_window(const ir::Program& program);

}  // namespace lancet::schedule
