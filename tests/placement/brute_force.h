// The exact optimum of small problems, by a method that shares nothing with the solvers.
#pragma once
#include <optional>

#include "lancet/placement/problem.h"

namespace lancet::placement::test {

// All assignments of ops to devices, and for each all orders of ops on devices and of flows on links: earliest starts
// without the rules of one at a time are longest paths; while two tasks of one device or link overlap in them, one of
// the two orders is added and the other tried next. Branches that cannot be shorter than the best are left. Up to 9 ops
// and 3 devices. None: no assignment has the memory and the paths.
std::optional<double> brute_force_ms(const Problem& problem);

}  // namespace lancet::placement::test
