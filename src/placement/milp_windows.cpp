// Heads and tails are longest paths in which each op may take its best device for each of its own devices: for op j on
// device k, head(j, k) = max over flows i -> j of min over devices l of head(i, l) + ms(i, l) + flow(l, k). Ops of one
// unit share a device, so that l = k there. A unit whose head and tail on a device are longer than the horizon together
// is elsewhere, which makes the heads and tails of others longer: until nothing changes.
#include <algorithm>
#include <cmath>

#include "milp_model.h"

namespace lancet::placement {
namespace {

class Paths {
 public:
  Paths(const Problem& problem, const Units& units)
      : problem_(problem), units_(units), flows_(flows_of_ops(problem)), devices_(problem.devices.size()) {}

  void heads(Windows& windows) const {
    windows.head.assign(problem_.ops.size(), std::vector<double>(devices_, 0));
    for (int op = 0; op < problem_.op_count(); ++op)
      for (std::size_t k = 0; k < devices_; ++k) windows.head[slot(op)][k] = head(windows, op, k);
  }
  void tails(Windows& windows) const {
    windows.tail.assign(problem_.ops.size(), std::vector<double>(devices_, 0));
    for (int op = problem_.op_count() - 1; op >= 0; --op)
      for (std::size_t k = 0; k < devices_; ++k) windows.tail[slot(op)][k] = tail(windows, op, k);
  }

 private:
  bool may(const Windows& windows, int op, std::size_t k) const { return windows.may[slot(units_.of[slot(op)])][k]; }
  bool together(int a, int b) const { return units_.of[slot(a)] == units_.of[slot(b)]; }

  double head(const Windows& windows, int op, std::size_t k) const {
    if (!may(windows, op, k)) return never;
    double latest = 0;
    for (const int index : flows_.in[slot(op)]) {
      const Flow& flow = problem_.flows[slot(index)];
      double least = never;
      for (std::size_t l = 0; l < devices_; ++l) {
        if (!may(windows, flow.from, l) || (together(flow.from, op) && l != k)) continue;
        const double end = windows.head[slot(flow.from)][l] + problem_.ops[slot(flow.from)].ms[l];
        least = std::min(least, end + problem_.flow_ms(flow, int(l), int(k)));
      }
      latest = std::max(latest, least);
    }
    return latest;
  }
  double tail(const Windows& windows, int op, std::size_t k) const {
    if (!may(windows, op, k)) return never;
    double longest = 0;
    for (const int index : flows_.out[slot(op)]) {
      const Flow& flow = problem_.flows[slot(index)];
      double least = never;
      for (std::size_t l = 0; l < devices_; ++l) {
        if (!may(windows, flow.to, l) || (together(op, flow.to) && l != k)) continue;
        least = std::min(least, problem_.flow_ms(flow, int(k), int(l)) + windows.tail[slot(flow.to)][l]);
      }
      longest = std::max(longest, least);
    }
    return longest + problem_.ops[slot(op)].ms[k];
  }

  const Problem& problem_;
  const Units& units_;
  const FlowsOfOps flows_;
  const std::size_t devices_;
};

// Removes devices from units; true if there was one to remove.
bool narrow(const Problem& problem, const Units& units, double horizon_ms, Windows& windows) {
  bool changed = false;
  for (int op = 0; op < problem.op_count(); ++op)
    for (std::size_t k = 0; k < problem.devices.size(); ++k) {
      auto allowed = windows.may[slot(units.of[slot(op)])].begin() + std::ptrdiff_t(k);
      if (!*allowed || windows.head[slot(op)][k] + windows.tail[slot(op)][k] <= horizon_ms) continue;
      *allowed = false;
      changed = true;
    }
  return changed;
}

}  // namespace

Windows windows(const Problem& problem, const Units& units, double horizon_ms) {
  Windows found;
  const Paths paths(problem, units);
  for (int unit = 0; unit < units.count(); ++unit) {
    found.may.emplace_back();
    for (const Device& device : problem.devices) found.may.back().push_back(units.mb[slot(unit)] <= device.memory_mb);
  }
  do {
    paths.heads(found);
    paths.tails(found);
  } while (narrow(problem, units, horizon_ms, found));

  const int ops = problem.op_count();
  found.earliest.assign(slot(ops) + problem.flows.size(), never);
  found.after = found.earliest;
  std::vector<double> first_end(slot(ops), never), least_tail(slot(ops), never);
  for (int op = 0; op < ops; ++op) {
    double bound = never;
    for (std::size_t k = 0; k < problem.devices.size(); ++k) {
      const double head = found.head[slot(op)][k], tail = found.tail[slot(op)][k], ms = problem.ops[slot(op)].ms[k];
      if (!std::isfinite(head)) continue;
      found.earliest[slot(op)] = std::min(found.earliest[slot(op)], head);
      first_end[slot(op)] = std::min(first_end[slot(op)], head + ms);
      least_tail[slot(op)] = std::min(least_tail[slot(op)], tail);
      found.after[slot(op)] = std::min(found.after[slot(op)], tail - ms);
      bound = std::min(bound, head + tail);
    }
    found.bound_ms = std::max(found.bound_ms, bound);
  }
  for (std::size_t i = 0; i < problem.flows.size(); ++i) {
    found.earliest[slot(ops) + i] = first_end[slot(problem.flows[i].from)];
    found.after[slot(ops) + i] = least_tail[slot(problem.flows[i].to)];
  }
  return found;
}

Reachability::Reachability(const Problem& problem) {
  const std::size_t tasks = problem.ops.size() + problem.flows.size();
  bits_.assign(tasks, std::vector<std::uint64_t>((tasks + 63) / 64, 0));
  const FlowsOfOps flows = flows_of_ops(problem);
  const auto add = [&](std::size_t task, std::size_t next) {
    bits_[task][next / 64] |= std::uint64_t{1} << (next % 64);
    for (std::size_t word = 0; word < bits_[task].size(); ++word) bits_[task][word] |= bits_[next][word];
  };
  for (int op = problem.op_count() - 1; op >= 0; --op)
    for (const int flow : flows.out[slot(op)]) {
      const std::size_t task = problem.ops.size() + slot(flow);
      add(task, slot(problem.flows[slot(flow)].to));
      add(slot(op), task);
    }
}

}  // namespace lancet::placement
