// What of the rules of problem.h a placement breaks.
#pragma once
#include <string>
#include <vector>

#include "lancet/placement/problem.h"

namespace lancet::placement {

// One line for each rule broken, empty for a valid answer: sizes of the tables, devices in range, ops on devices that
// run them, groups on one device, paths of flows, durations of ops and flows, no start before 0, an op after the flows
// that enter it and a flow after the op that makes it, one op at a time on a device, one flow at a time on an uplink
// and on a downlink, memory, and the makespan. Times may differ by `tolerance` times the makespan. Empty intervals take
// no device and no link.
std::vector<std::string> violations(const Problem& problem, const Placement& placement, double tolerance = 1e-9);

}  // namespace lancet::placement
