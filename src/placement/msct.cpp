// m-SCT: ETF with favourite children (Hanen and Munier, 1995; with memory: Baechi, Jeon et al., 2020, section 3.2).
//
// The linear program has an e in [0, 1] for each flow, 0 where its reader is its maker's favourite child and begins
// without communication: min w, s_i + p_i + c_ij e_ij <= s_j, s_i + p_i <= w, and of the flows that leave or enter an
// op at most one has e = 0. Times are means over devices and pairs. Flows of e <= 0.5 are taken in rising order of e,
// and only if maker and reader have no favourite yet: at exactly 0.5 two children could be favourites at once.
//
// Then ops run as in ETF, but a device waits for the favourite child of the op that it ran last: another op may run
// there only if its operands have arrived by the time the device is idle, or if no other pair is left.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "earliest_first.h"
#include "lancet/placement/solvers.h"
#include "linear_optimum.h"

namespace lancet::placement {
namespace {

constexpr double rounding = 0.5, tolerance = 1e-6;

// Columns: e of each flow, then the start of each op, then the makespan.
LinearModel favourites_model(const Problem& problem) {
  const FlowsOfOps flows = flows_of_ops(problem);
  LinearModel model;
  const int flow_count = int(problem.flows.size());
  for (int flow = 0; flow < flow_count; ++flow) model.add_column({.name = fmt::format("e{}", flow), .upper = 1});
  for (int op = 0; op < problem.op_count(); ++op) model.add_column({.name = fmt::format("s{}", op)});
  const int makespan = model.add_column({.name = "w", .cost = 1});
  const auto start = [&](int op) { return flow_count + op; };
  for (int flow = 0; flow < flow_count; ++flow) {
    const Flow& of = problem.flows[std::size_t(flow)];
    model.add_row(fmt::format("flow{}", flow), mean_ms(problem.ops[std::size_t(of.from)]), unbounded,
                  {{start(of.to), 1}, {start(of.from), -1}, {flow, mean_flow_ms(problem, of) * -1}});
  }
  for (int op = 0; op < problem.op_count(); ++op) {
    model.add_row(fmt::format("end{}", op), mean_ms(problem.ops[std::size_t(op)]), unbounded,
                  {{makespan, 1}, {start(op), -1}});
    for (const auto& [name, ends] : {std::pair("in", &flows.in), {"out", &flows.out}}) {
      const std::vector<int>& of = (*ends)[std::size_t(op)];
      std::vector<Term> terms;
      for (const int flow : of) terms.push_back({flow, 1});
      if (of.size() > 1) model.add_row(fmt::format("{}{}", name, op), double(of.size()) - 1, unbounded, terms);
    }
  }
  return model;
}

// By op: its favourite child, or -1.
Result<std::vector<int>> favourite_children(const Problem& problem) {
  LANCET_ASSIGN(const std::vector<double> e, linear_optimum(favourites_model(problem)));
  std::vector<int> order(problem.flows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return e[std::size_t(a)] < e[std::size_t(b)]; });
  std::vector<int> child(problem.ops.size(), -1), parent(problem.ops.size(), -1);
  for (const int flow : order) {
    const Flow& of = problem.flows[std::size_t(flow)];
    if (e[std::size_t(flow)] > rounding + tolerance) break;
    if (child[std::size_t(of.from)] >= 0 || parent[std::size_t(of.to)] >= 0) continue;
    child[std::size_t(of.from)] = of.to;
    parent[std::size_t(of.to)] = of.from;
  }
  return child;
}

}  // namespace

Result<Placement> msct(const Problem& problem) {
  auto children = favourite_children(problem);
  if (!children.ok()) return Error{children.error().code, "msct: " + children.error().message};
  std::vector<int> last(problem.devices.size(), -1);  // by device: the op that it ran last
  const auto start_on = [&](Partial& partial, int op, int device) -> EarliestStart {
    const double start = partial.start_on(op, device);
    const int before = last[std::size_t(device)];
    const int awaited = before >= 0 ? (*children)[std::size_t(before)] : -1;
    const bool waits = awaited >= 0 && awaited != op && !partial.table().has_run(awaited) &&
                       partial.admits(awaited, device) && start > partial.table().end(before);
    return {start, waits};
  };
  return earliest_first("msct", problem, start_on,
                        [&](const Partial& partial, int op) { last[std::size_t(partial.table().device(op))] = op; });
}

}  // namespace lancet::placement
