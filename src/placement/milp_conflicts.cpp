#include <algorithm>

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

}  // namespace

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
