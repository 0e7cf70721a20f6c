// Answers of the integer program as placements, and placements as its answers.
#include <algorithm>
#include <queue>

#include "milp_model.h"
#include "milp_windows.h"

namespace lancet::placement {
namespace {

// What tasks may overlap by, in units of the program's time: a millionth of the horizon, as CBC's tolerances allow.
constexpr double overlap_allowed = 1e-4;

struct TimedTask {
  double start = 0, end = 0;
  int task = 0;
};

void add_overlaps(std::vector<TimedTask>& tasks, std::vector<std::pair<int, int>>& pairs) {
  std::sort(tasks.begin(), tasks.end(), [](const TimedTask& a, const TimedTask& b) { return a.start < b.start; });
  for (std::size_t i = 0; i < tasks.size(); ++i)
    for (std::size_t j = i + 1; j < tasks.size() && tasks[j].start < tasks[i].end - overlap_allowed; ++j)
      if (tasks[j].end - tasks[j].start > overlap_allowed) pairs.push_back(std::minmax(tasks[i].task, tasks[j].task));
}

// Equal devices in the order in which the units use them first.
void order_twins(const MilpModel& model, Placement& placement) {
  std::vector<int> root(model.twin.size()), renamed(model.twin.size(), -1), used(model.twin.size(), -1);
  for (std::size_t k = 0; k < root.size(); ++k) root[k] = model.twin[k] < 0 ? int(k) : root[slot(model.twin[k])];
  const auto next_of = [&](int class_root) {
    int device = used[slot(class_root)] + 1;
    while (root[slot(device)] != class_root) ++device;
    return used[slot(class_root)] = device;
  };
  for (const auto& ops : model.units.ops) {
    const int device = placement.device[slot(ops.front())];
    if (renamed[slot(device)] < 0) renamed[slot(device)] = next_of(root[slot(device)]);
  }
  for (int& device : placement.device) device = renamed[slot(device)];
}

}  // namespace

std::vector<double> milp_start(const MilpModel& model, const Problem& problem, Placement placement) {
  order_twins(model, placement);
  std::vector<double> values(model.linear.columns.size(), 0);
  for (std::size_t u = 0; u < model.on.size(); ++u)
    values[slot(model.on[u][slot(placement.device[slot(model.units.ops[u].front())])])] = 1;
  const int ops = problem.op_count();
  const auto interval = [&](int task) {
    return task < ops ? placement.ops[slot(task)] : placement.flows[slot(task - ops)];
  };
  const auto meet = [&](int task, int other) {
    const auto device = [&](int op) { return placement.device[slot(op)]; };
    if (task < ops) return device(task) == device(other);
    const Flow &q = problem.flows[slot(task - ops)], &r = problem.flows[slot(other - ops)];
    if (device(q.from) == device(q.to) || device(r.from) == device(r.to)) return false;
    return device(q.from) == device(r.from) || device(q.to) == device(r.to);
  };
  for (const MilpPair& pair : model.pairs)
    if (pair.before >= 0 && meet(pair.first, pair.second) && interval(pair.first).end <= interval(pair.second).start)
      values[slot(pair.before)] = 1;
  return values;
}

std::vector<int> milp_devices(const MilpModel& model, const Problem& problem, const std::vector<double>& values) {
  std::vector<int> device(problem.ops.size(), 0);
  for (int op = 0; op < problem.op_count(); ++op) {
    const auto& on = model.on[slot(model.units.of[slot(op)])];
    for (int k = 0; k < problem.device_count(); ++k)
      if (values[slot(on[slot(k)])] > 0.5) device[slot(op)] = k;
  }
  return device;
}

Placement milp_placement(const MilpModel& model, const Problem& problem, const std::vector<double>& values) {
  const int ops = problem.op_count();
  const std::vector<int> device = milp_devices(model, problem, values);
  // Of what may run, what starts first: starts may precede their predecessors' ends by the solver's tolerance.
  const FlowsOfOps flows = flows_of_ops(problem);
  using Entry = std::pair<double, int>;  // start, task
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::vector<std::size_t> waits(slot(ops));
  const auto push = [&](int task) { ready.emplace(values[slot(model.start[slot(task)])], task); };
  const auto arrived = [&](int op) {
    if (--waits[slot(op)] == 0) push(op);
  };
  for (int op = 0; op < ops; ++op) {
    waits[slot(op)] = flows.in[slot(op)].size();
    if (waits[slot(op)] == 0) push(op);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int task = ready.top().second;
    ready.pop();
    order.push_back(task);
    if (task >= ops) {
      arrived(problem.flows[slot(task - ops)].to);
      continue;
    }
    for (const int flow : flows.out[slot(task)]) {
      const int reader = problem.flows[slot(flow)].to;
      if (device[slot(reader)] == device[slot(task)])
        arrived(reader);
      else
        push(ops + flow);
    }
  }
  return timetable(problem, device, order);
}

std::vector<std::pair<int, int>> milp_conflicts(const MilpModel& model, const Problem& problem,
                                                const std::vector<double>& values) {
  const std::vector<int> device = milp_devices(model, problem, values);
  const std::size_t devices = problem.devices.size();
  std::vector<std::vector<TimedTask>> takers(3 * devices);  // of the devices, the uplinks and the downlinks
  const auto timed = [&](int task, double ms) {
    const double start = values[slot(model.start[slot(task)])];
    return TimedTask{start, start + ms / model.scale, task};
  };
  for (int op = 0; op < problem.op_count(); ++op) {
    const int k = device[slot(op)];
    takers[slot(k)].push_back(timed(op, problem.ops[slot(op)].ms[slot(k)]));
  }
  for (int flow = 0; flow < int(problem.flows.size()); ++flow) {
    const Flow& of = problem.flows[slot(flow)];
    const int from = device[slot(of.from)], to = device[slot(of.to)];
    if (from == to) continue;
    const TimedTask task = timed(problem.op_count() + flow, problem.flow_ms(of, from, to));
    takers[devices + slot(from)].push_back(task);
    takers[2 * devices + slot(to)].push_back(task);
  }
  std::vector<std::pair<int, int>> pairs;
  for (std::vector<TimedTask>& tasks : takers) add_overlaps(tasks, pairs);
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

}  // namespace lancet::placement
