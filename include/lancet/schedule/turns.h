// Dependencies that keep streams from overlapping.
#pragma once
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// Adds dependencies such that compute and all-to-all do not overlap: each instruction waits for the last one of the
// other stream before it. A part (`parts` attribute) waits for the last whole one only, so parts still overlap each
// other.
Dependencies turns(const ir::Program& program, Dependencies dependencies);
// The same where `overlaps`, per instruction, says in place of the attribute which of them overlap each other.
Dependencies turns(const ir::Program& program, Dependencies dependencies, const std::vector<bool>& overlaps);

// Adds dependencies such that the communication streams never share the network: each message waits for the last one of
// the other stream before it in program order.
Dependencies one_message_at_a_time(const ir::Program& program, Dependencies dependencies);

}  // namespace lancet::schedule
