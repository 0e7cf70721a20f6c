// The dynamic programme over partition ranges (Lancet, section 5.1).
#pragma once
#include <functional>
#include <span>
#include <vector>

namespace lancet::schedule {

// The groups [begin, end), each instruction in `parts` parts.
struct Range {
  int begin = 0, end = 0, parts = 1;
  friend bool operator==(const Range&, const Range&) = default;
};

struct Ranges {
  std::vector<Range> ranges;  // all groups, in order
  double ms = 0;
};

// Milliseconds of the groups [begin, end) in `parts` parts; infinity if they cannot be split so.
using RangeCost = std::function<double(int begin, int end, int parts)>;

// T(n) = min over i, k of T(i) + cost(i, n, k), with ranges of at most max_range groups and k of `parts` (ascending, 1
// among them). Ties go to the longest range and the fewest parts.
Ranges choose_ranges(int groups, int max_range, std::span<const int> parts, const RangeCost& cost);

}  // namespace lancet::schedule
