#include "earliest_first.h"

#include <algorithm>
#include <tuple>

#include "lancet/placement/solvers.h"

namespace lancet::placement {

Result<Placement> earliest_first(std::string_view solver, const Problem& problem, const StartOn& start_on,
                                 const HasRun& has_run) {
  Partial partial(problem);
  const std::vector<double> ranks = upward_ranks(problem, partial.flows());
  std::vector<int> ready;
  for (int op = 0; op < problem.op_count(); ++op)
    if (partial.is_ready(op)) ready.push_back(op);
  while (!ready.empty()) {
    // Whether it waits, start, the rank downwards, end, op, device: the least is first.
    std::tuple<bool, double, double, double, int, int> first{true, never, 0, 0, -1, -1};
    for (const int op : ready)
      for (int device = 0; device < problem.device_count(); ++device) {
        const auto [start, waits] = start_on(partial, op, device);
        const double end = start + problem.ops[std::size_t(op)].ms[std::size_t(device)];
        if (start < never) first = std::min(first, {waits, start, -ranks[std::size_t(op)], end, op, device});
      }
    const auto [waits, start, rank, end, op, device] = first;
    if (op < 0) return no_device_left(solver, problem, ready.front());
    partial.run(op, device);
    ready.erase(std::find(ready.begin(), ready.end(), op));
    for (const int flow : partial.flows().out[std::size_t(op)])
      if (const int to = problem.flows[std::size_t(flow)].to; partial.is_ready(to)) ready.push_back(to);
    if (has_run) has_run(partial, op);
  }
  return partial.placement();
}

Result<Placement> etf(const Problem& problem) {
  return earliest_first("etf", problem, [](Partial& partial, int op, int device) -> EarliestStart {
    return {partial.start_on(op, device), false};
  });
}

}  // namespace lancet::placement
