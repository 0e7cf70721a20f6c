#include "linked.h"

#include <algorithm>
#include <cmath>

#include "together.h"

namespace lancet::placement {
namespace {

std::vector<std::pair<int, int>> flows_between_units(const Problem& problem, const Units& units) {
  std::vector<std::pair<int, int>> flows;
  for (const Flow& flow : problem.flows) {
    const int from = units.of[std::size_t(flow.from)], to = units.of[std::size_t(flow.to)];
    if (from != to) flows.emplace_back(from, to);
  }
  std::sort(flows.begin(), flows.end());
  flows.erase(std::unique(flows.begin(), flows.end()), flows.end());
  return flows;
}

bool all_have_paths(const Problem& problem) {
  for (int from = 0; from < problem.device_count(); ++from)
    for (int to = 0; to < problem.device_count(); ++to)
      if (!has_path(problem, from, to)) return false;
  return true;
}

}  // namespace

std::vector<std::vector<int>> linked_devices(const Problem& problem) {
  Together together(problem.devices.size());
  for (int from = 0; from < problem.device_count(); ++from)
    for (int to = 0; to < problem.device_count(); ++to)
      if (has_path(problem, from, to)) together.join(std::size_t(from), std::size_t(to));
  return together.sets();
}

double memory_of(const Problem& problem, const std::vector<int>& devices) {
  double sum = 0;
  for (const int device : devices) sum += problem.devices[std::size_t(device)].memory_mb;
  return sum;
}

std::vector<std::vector<int>> joined_units(const Problem& problem, const Units& units) {
  Together together(units.ops.size());
  for (const auto& [from, to] : flows_between_units(problem, units)) together.join(std::size_t(from), std::size_t(to));
  return together.sets();
}

double memory_for(const Units& units, const std::vector<int>& joined) {
  double sum = 0;
  for (const int unit : joined) sum += units.mb[std::size_t(unit)];
  return sum;
}

Choices::Choices(const Problem& problem, const Units& units)
    : problem_(problem), may_(units.ops.size(), std::vector<bool>(problem.devices.size(), false)) {
  const auto linked = linked_devices(problem);
  for (const std::vector<int>& joined : joined_units(problem, units)) {
    const double needed = memory_for(units, joined);
    for (const std::vector<int>& devices : linked)
      if (needed <= memory_of(problem, devices))
        for (const int unit : joined)
          for (const int device : devices)
            may_[std::size_t(unit)][std::size_t(device)] = can_hold(problem, units, unit, device);
  }
  if (all_have_paths(problem)) return;
  flows_ = flows_between_units(problem, units);
  narrow();
}

void Choices::choose(int unit, int device) {
  std::vector<bool>& devices = may_[std::size_t(unit)];
  std::fill(devices.begin(), devices.end(), false);
  devices[std::size_t(device)] = true;
  narrow();
}

// Flows ascend and descend in turn, so that a chain of units takes one turn.
void Choices::narrow() {
  for (bool changed = !flows_.empty(); changed;) {
    changed = false;
    for (const auto& [from, to] : flows_) changed |= narrow(from, to);
    for (auto flow = flows_.rbegin(); flow != flows_.rend(); ++flow) changed |= narrow(flow->first, flow->second);
  }
}

bool Choices::narrow(int from, int to) {
  std::vector<bool>&senders = may_[std::size_t(from)], &receivers = may_[std::size_t(to)];
  bool changed = false;
  const auto keep = [&](std::vector<bool>& devices, int device, const auto& is_joined) {
    if (!devices[std::size_t(device)]) return;
    for (int other = 0; other < problem_.device_count(); ++other)
      if (is_joined(other)) return;
    devices[std::size_t(device)] = false;
    changed = true;
  };
  for (int k = 0; k < problem_.device_count(); ++k) {
    keep(senders, k, [&](int l) { return receivers[std::size_t(l)] && has_path(problem_, k, l); });
    keep(receivers, k, [&](int l) { return senders[std::size_t(l)] && has_path(problem_, l, k); });
  }
  return changed;
}

}  // namespace lancet::placement
