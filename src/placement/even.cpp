#include <algorithm>

#include "lancet/placement/solvers.h"
#include "partial.h"

namespace lancet::placement {

Result<Placement> even(const Problem& problem) {
  const Units units = units_of(problem);
  const int devices = problem.device_count(), count = units.count();
  Partial partial(problem);
  for (int op = 0; op < problem.op_count(); ++op) {
    const int device = int(std::int64_t(units.of[std::size_t(op)]) * devices / std::max(count, 1));
    if (!partial.admits(op, device) || partial.run(op, device) == never) return no_device_left("even", problem, op);
  }
  return partial.placement();
}

}  // namespace lancet::placement
