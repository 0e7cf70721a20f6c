#include "lancet/placement/solvers.h"
#include "partial.h"

namespace lancet::placement {

Result<Placement> heft(const Problem& problem) {
  Partial partial(problem);
  for (const int op : order_by(upward_ranks(problem, partial.flows()))) {
    int best = -1;
    double end = never;
    for (int device = 0; device < problem.device_count(); ++device)
      if (const double here = partial.end_on(op, device); here < end) end = here, best = device;
    if (best < 0) return no_device_left("heft", problem, op);
    partial.run(op, best);
  }
  return partial.placement();
}

}  // namespace lancet::placement
