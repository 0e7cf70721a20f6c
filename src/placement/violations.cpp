#include "lancet/placement/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace lancet::placement {
namespace {

class Check {
 public:
  Check(const Problem& problem, const Placement& placement)
      : problem_(problem), placement_(placement), tolerance_(1e-9 * std::max(1e-300, placement.makespan_ms)) {}

  std::vector<std::string> run() {
    sizes();
    if (found_.empty()) devices();
    if (!found_.empty()) return found_;  // the rules below read the tables by devices
    groups();
    durations();
    precedence();
    one_at_a_time();
    memory();
    makespan();
    return found_;
  }

 private:
  struct Task {
    Interval interval;
    std::string name;
  };

  template <class... Args>
  void found(fmt::format_string<Args...> format, Args&&... args) {
    found_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  bool differ(double a, double b) const { return !(std::fabs(a - b) <= tolerance_); }  // also for values not finite
  const Op& op(int index) const { return problem_.ops[at(index)]; }
  int device(int index) const { return placement_.device[at(index)]; }
  std::string name(int index) const { return fmt::format("op {} ({})", index, op(index).name); }
  std::string name_of_flow(int index) const {
    const Flow& flow = problem_.flows[at(index)];
    return fmt::format("flow {} ({} -> {})", index, op(flow.from).name, op(flow.to).name);
  }
  std::string name_of_device(int index) const {
    return fmt::format("device {} ({})", index, problem_.devices[at(index)].name);
  }

  void sizes() {
    const auto expect = [&](const char* what, std::size_t expected, std::size_t size) {
      if (expected != size) found("{}: expected {} entries, found {}", what, expected, size);
    };
    expect("devices of ops", problem_.ops.size(), placement_.device.size());
    expect("intervals of ops", problem_.ops.size(), placement_.ops.size());
    expect("intervals of flows", problem_.flows.size(), placement_.flows.size());
  }

  void devices() {
    for (int i = 0; i < problem_.op_count(); ++i) {
      if (device(i) < 0 || device(i) >= problem_.device_count())
        found("{}: expected a device from 0 to {}, found {}", name(i), problem_.device_count() - 1, device(i));
    }
  }

  void groups() {
    std::map<int, int> first;  // op of each group
    for (int i = 0; i < problem_.op_count(); ++i) {
      if (op(i).group < 0) continue;
      const int other = first.emplace(op(i).group, i).first->second;
      if (device(i) != device(other))
        found("group {}: {} is on {}, {} on {}", op(i).group, name(other), name_of_device(device(other)), name(i),
              name_of_device(device(i)));
    }
  }

  void duration(const std::string& name, const Interval& interval, double expected) {
    if (differ(interval.end - interval.start, expected))
      found("{} takes {} ms, expected {} ms", name, interval.end - interval.start, expected);
    if (!(interval.start >= -tolerance_)) found("{} starts at {} ms, expected 0 or later", name, interval.start);
  }

  void durations() {
    for (int i = 0; i < problem_.op_count(); ++i) duration(name(i), placement_.ops[at(i)], op(i).ms[at(device(i))]);
    for (int i = 0; i < int(problem_.flows.size()); ++i) {
      const Flow& flow = problem_.flows[at(i)];
      duration(name_of_flow(i), placement_.flows[at(i)], problem_.flow_ms(flow, device(flow.from), device(flow.to)));
    }
  }

  // A flow inside a device takes no time; its interval may be anywhere, and its reader follows its maker.
  void precedence() {
    for (int i = 0; i < int(problem_.flows.size()); ++i) {
      const Flow& flow = problem_.flows[at(i)];
      const Interval &maker = placement_.ops[at(flow.from)], &reader = placement_.ops[at(flow.to)];
      if (device(flow.from) == device(flow.to)) {
        after(name(flow.to), reader, name(flow.from), maker);
      } else {
        after(name_of_flow(i), placement_.flows[at(i)], name(flow.from), maker);
        after(name(flow.to), reader, name_of_flow(i), placement_.flows[at(i)]);
      }
    }
  }
  void after(const std::string& later, const Interval& second, const std::string& earlier, const Interval& first) {
    if (!(second.start >= first.end - tolerance_))
      found("{} starts at {} ms, before {} ends at {} ms", later, second.start, earlier, first.end);
  }

  void one_at_a_time() {
    const auto count = at(problem_.device_count());
    std::vector<std::vector<Task>> on(count), up(count), down(count);
    for (int i = 0; i < problem_.op_count(); ++i) on[at(device(i))].push_back({placement_.ops[at(i)], name(i)});
    for (int i = 0; i < int(problem_.flows.size()); ++i) {
      const int from = device(problem_.flows[at(i)].from), to = device(problem_.flows[at(i)].to);
      if (from == to) continue;
      up[at(from)].push_back({placement_.flows[at(i)], name_of_flow(i)});
      down[at(to)].push_back({placement_.flows[at(i)], name_of_flow(i)});
    }
    for (std::size_t k = 0; k < count; ++k) {
      overlaps("on " + name_of_device(int(k)), on[k]);
      overlaps("on the uplink of " + name_of_device(int(k)), up[k]);
      overlaps("on the downlink of " + name_of_device(int(k)), down[k]);
    }
  }
  // Reports each task that starts before the latest end of those that started earlier.
  void overlaps(const std::string& where, std::vector<Task>& tasks) {
    std::erase_if(tasks, [&](const Task& task) { return task.interval.end - task.interval.start <= tolerance_; });
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const Task& a, const Task& b) { return a.interval.start < b.interval.start; });
    const Task* latest = nullptr;
    for (const Task& task : tasks) {
      if (latest && task.interval.start < latest->interval.end - tolerance_)
        found("{} and {} run at the same time {}", latest->name, task.name, where);
      if (!latest || task.interval.end > latest->interval.end) latest = &task;
    }
  }

  void memory() {
    std::vector<double> held(problem_.devices.size(), 0);
    for (int i = 0; i < problem_.op_count(); ++i) held[at(device(i))] += op(i).mb;
    for (int k = 0; k < problem_.device_count(); ++k) {
      const double limit = problem_.devices[at(k)].memory_mb;
      if (held[at(k)] > limit * (1 + 1e-9))
        found("{} holds {} MB, expected {} MB at most", name_of_device(k), held[at(k)], limit);
    }
  }

  void makespan() {
    double latest = 0;
    for (const Interval& interval : placement_.ops) latest = std::max(latest, interval.end);
    if (differ(latest, placement_.makespan_ms))
      found("the makespan is {} ms, but the last op ends at {} ms", placement_.makespan_ms, latest);
  }

  const Problem& problem_;
  const Placement& placement_;
  const double tolerance_;  // in ms
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> violations(const Problem& problem, const Placement& placement) {
  return Check(problem, placement).run();
}

}  // namespace lancet::placement
