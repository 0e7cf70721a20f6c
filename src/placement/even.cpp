#include <algorithm>

#include "lancet/placement/solvers.h"
#include "partial.h"

namespace lancet::placement {

Result<Placement> even(const Problem& problem) {
  const Units units = units_of(problem);
  const auto sets = linked_devices(problem);
  const std::vector<int>& devices = *std::max_element(sets.begin(), sets.end(), [&](const auto& a, const auto& b) {
    return memory_of(problem, a) < memory_of(problem, b);
  });
  const int count = units.count();
  Partial partial(problem);
  for (int op = 0; op < problem.op_count(); ++op) {
    const std::size_t share = std::size_t(units.of[std::size_t(op)]) * devices.size() / std::size_t(std::max(count, 1));
    const int device = devices[share];
    if (!partial.admits(op, device) || partial.run(op, device) == never) return no_device_left("even", problem, op);
  }
  return partial.placement();
}

}  // namespace lancet::placement
