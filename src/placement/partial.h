// A placement that a list scheduler makes op by op: the timetable of what is placed, and the memory that is left.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement {

// Clusters in which some pairs of devices have no path: which devices may be used together.
inline bool has_path(const Problem& problem, int from, int to) {
  return std::isfinite(problem.ms_per_mb[std::size_t(from)][std::size_t(to)]);
}

// The devices as sets: a path, in one direction at least, joins two devices of one set only. One set if all are linked.
std::vector<std::vector<int>> linked_devices(const Problem& problem);
double memory_of(const Problem& problem, const std::vector<int>& devices);  // in MB

// The units as sets: a flow joins two units of one set only.
std::vector<std::vector<int>> joined_units(const Problem& problem, const Units& units);
double memory_for(const Units& units, const std::vector<int>& joined);  // in MB

// Which devices are left to units that a list scheduler places one after another. A unit may be on a device that holds
// it, if the devices linked to that one have the memory for all units that are joined to this one, and if each of its
// flows has a path to or from some device that is left to the unit at the other end. Every unit that gets a device
// takes devices from others by the last rule, so that units that must meet are not parted.
class Choices {
 public:
  Choices(const Problem& problem, const Units& units);  // which outlive it
  bool may(int unit, int device) const { return may_[std::size_t(unit)][std::size_t(device)]; }
  void choose(int unit, int device);

 private:
  void narrow();
  bool narrow(int from, int to);

  const Problem& problem_;
  std::vector<std::vector<bool>> may_;      // [unit][device]
  std::vector<std::pair<int, int>> flows_;  // between units; none if all pairs of devices have a path
};

class Partial {
 public:
  explicit Partial(const Problem& problem);  // which outlives it
  // True if the op may run there: its unit is there already, or is nowhere yet, fits into the memory that is left, and
  // is not parted there from others (Choices).
  bool admits(int op, int device) const;
  // Runs an admitted op; its unit takes its memory with the first of its ops. Returns the end; `never` if a flow has no
  // path, and then nothing has changed.
  double run(int op, int device);
  double start_on(int op, int device) { return admits(op, device) ? table_.start_on(op, device) : never; }
  double end_on(int op, int device);
  bool is_ready(int op) const;  // it has not run, and all its predecessors have

  const Problem& problem() const { return problem_; }
  const FlowsOfOps& flows() const { return flows_; }
  const Timetable& table() const { return table_; }
  Placement placement() const { return table_.placement(); }

 private:
  const Problem& problem_;
  const FlowsOfOps flows_;
  const Units units_;
  Choices choices_;
  std::vector<int> device_of_unit_;  // -1: nowhere yet
  std::vector<double> left_mb_;      // by device
  Timetable table_;
};

// The error of a list scheduler that finds no device for an op.
Error no_device_left(std::string_view solver, const Problem& problem, int op);

// Sets of indices that grow together. A set's root is its least index.
class Together {
 public:
  explicit Together(std::size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), std::size_t(0)); }
  std::size_t root(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[std::max(root(a), root(b))] = std::min(root(a), root(b)); }
  // The sets in the order of their roots, each ascending.
  std::vector<std::vector<int>> sets() {
    std::vector<std::vector<int>> by_root(parent_.size());
    for (std::size_t i = 0; i < parent_.size(); ++i) by_root[root(i)].push_back(int(i));
    std::erase_if(by_root, [](const std::vector<int>& set) { return set.empty(); });
    return by_root;
  }

 private:
  std::vector<std::size_t> parent_;
};

}  // namespace lancet::placement
