// Placements in which each device has a run of neighbouring units.
#pragma once
#include <vector>

#include "lancet/placement/timetable.h"

namespace lancet::placement {

// For each order of up to 4 devices, for more only that of their speeds: the device of each unit, where the first
// devices of the order have one run each, of the shortest sum of the times of ops and of the flows over the borders.
// Orders without a split that fits the memories are left out. Exact for a chain of ops.
std::vector<std::vector<int>> contiguous_splits(const Problem& problem, const Units& units);

}  // namespace lancet::placement
