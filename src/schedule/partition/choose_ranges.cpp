// Dynamic programme over prefixes: best[n] is the shortest time T(n) of the first n groups with the range that ends at
// n. Following the last ranges back from n = groups gives the ranges. Strict comparison, with i and the parts in
// ascending order, breaks ties for the longest range first and then for the fewest parts.
#include "choose_ranges.h"

#include <algorithm>
#include <limits>

namespace lancet::schedule {

Ranges choose_ranges(int groups, int max_range, std::span<const int> parts, const RangeCost& cost) {
  struct Best {
    double ms = std::numeric_limits<double>::infinity();
    Range last;
  };
  std::vector<Best> best(std::size_t(groups) + 1);
  best[0].ms = 0;
  for (int n = 1; n <= groups; ++n)
    for (int i = std::max(0, n - max_range); i < n; ++i)
      for (int k : parts) {
        const double ms = best[std::size_t(i)].ms + cost(i, n, k);
        if (ms < best[std::size_t(n)].ms) best[std::size_t(n)] = {ms, {i, n, k}};
      }
  Ranges result{{}, best[std::size_t(groups)].ms};
  for (int n = groups; n > 0; n = best[std::size_t(n)].last.begin) result.ranges.push_back(best[std::size_t(n)].last);
  std::reverse(result.ranges.begin(), result.ranges.end());
  return result;
}

}  // namespace lancet::schedule
