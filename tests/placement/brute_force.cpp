#include "placement/support.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace lancet::placement::test {
namespace {

constexpr double far = std::numeric_limits<double>::infinity();

// The best timetable of one assignment.
class Orders {
 public:
  Orders(const Problem& problem, const std::vector<int>& device, double best) : best_(best) {
    for (std::size_t op = 0; op < problem.ops.size(); ++op)
      add(problem.ops[op].ms[std::size_t(device[op])], {device[op]});
    const int devices = problem.device_count();
    for (const Flow& flow : problem.flows) {
      const int from = device[std::size_t(flow.from)], to = device[std::size_t(flow.to)];
      if (from == to) {
        after_[std::size_t(flow.from)].push_back(std::size_t(flow.to));
        continue;
      }
      const std::size_t task = add(problem.flow_ms(flow, from, to), {devices + from, 2 * devices + to});
      after_[std::size_t(flow.from)].push_back(task);
      after_[task].push_back(std::size_t(flow.to));
    }
  }

  // The shortest makespan below the best, or the best.
  double run() {
    search();
    return best_;
  }

 private:
  std::size_t add(double ms, std::vector<int> resources) {
    ms_.push_back(ms);
    resources_.push_back(std::move(resources));
    after_.emplace_back();
    return ms_.size() - 1;
  }

  // Longest paths from the start; false where the orders form a cycle.
  bool starts(std::vector<double>& start, double& makespan) const {
    const std::size_t count = ms_.size();
    std::vector<int> waits(count, 0);
    for (const auto& next : after_)
      for (const std::size_t task : next) ++waits[task];
    std::vector<std::size_t> ready;
    for (std::size_t task = 0; task < count; ++task)
      if (waits[task] == 0) ready.push_back(task);
    start.assign(count, 0);
    makespan = 0;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      const double end = start[ready[i]] + ms_[ready[i]];
      makespan = std::max(makespan, end);
      for (const std::size_t task : after_[ready[i]]) {
        start[task] = std::max(start[task], end);
        if (--waits[task] == 0) ready.push_back(task);
      }
    }
    return ready.size() == count;
  }

  bool share(std::size_t a, std::size_t b) const {
    for (const int of_a : resources_[a])
      for (const int of_b : resources_[b])
        if (of_a == of_b) return true;
    return false;
  }

  void search() {
    std::vector<double> start;
    double makespan = 0;
    if (!starts(start, makespan) || makespan >= best_) return;
    for (std::size_t a = 0; a < ms_.size(); ++a)
      for (std::size_t b = a + 1; b < ms_.size(); ++b) {
        if (!share(a, b) || start[a] + ms_[a] <= start[b] || start[b] + ms_[b] <= start[a]) continue;
        for (const auto& [first, second] : {std::pair(a, b), {b, a}}) {
          after_[first].push_back(second);
          search();
          after_[first].pop_back();
        }
        return;
      }
    best_ = makespan;
  }

  double best_;
  std::vector<double> ms_;                   // by task: ops, then flows between devices
  std::vector<std::vector<int>> resources_;  // by task: device, or uplink and downlink
  std::vector<std::vector<std::size_t>> after_;
};

class Assignments {
 public:
  explicit Assignments(const Problem& problem) : problem_(problem), held_(problem.devices.size(), 0), busy_(held_) {}
  std::optional<double> run() {
    assign(0);
    return best_ < far ? std::optional(best_) : std::nullopt;
  }

 private:
  bool fits(std::size_t op, int k) const {
    const Op& of = problem_.ops[op];
    if (held_[std::size_t(k)] + of.mb > problem_.devices[std::size_t(k)].memory_mb) return false;
    if (busy_[std::size_t(k)] + of.ms[std::size_t(k)] >= best_) return false;
    for (std::size_t other = 0; other < op; ++other)
      if (of.group >= 0 && problem_.ops[other].group == of.group && device_[other] != k) return false;
    return true;
  }

  void assign(std::size_t op) {
    if (op == problem_.ops.size()) {
      best_ = Orders(problem_, device_, best_).run();
      return;
    }
    for (int k = 0; k < problem_.device_count(); ++k) {
      if (!fits(op, k)) continue;
      device_.push_back(k);
      held_[std::size_t(k)] += problem_.ops[op].mb;
      busy_[std::size_t(k)] += problem_.ops[op].ms[std::size_t(k)];
      assign(op + 1);
      busy_[std::size_t(k)] -= problem_.ops[op].ms[std::size_t(k)];
      held_[std::size_t(k)] -= problem_.ops[op].mb;
      device_.pop_back();
    }
  }

  const Problem& problem_;
  double best_ = far;
  std::vector<int> device_;
  std::vector<double> held_, busy_;  // by device
};

}  // namespace

std::optional<double> brute_force_ms(const Problem& problem) { return Assignments(problem).run(); }

}  // namespace lancet::placement::test
