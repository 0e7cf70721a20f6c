// Clusters in which some pairs of devices have no path: which devices may be used together.
#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include "lancet/placement/timetable.h"

namespace lancet::placement {

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

}  // namespace lancet::placement
