#include "partial.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

#include "lancet/base/check.h"
#include "lancet/base/shown.h"

namespace lancet::placement {

Partial::Partial(const Problem& problem)
    : problem_(problem),
      flows_(flows_of_ops(problem)),
      units_(units_of(problem)),
      choices_(problem, units_),
      device_of_unit_(units_.ops.size(), -1),
      table_(problem) {
  for (const Device& device : problem.devices) left_mb_.push_back(device.memory_mb);
}

bool Partial::admits(int op, int device) const {
  const int unit = units_.of[std::size_t(op)], there = device_of_unit_[std::size_t(unit)];
  if (there >= 0) return there == device;
  return units_.mb[std::size_t(unit)] <= left_mb_[std::size_t(device)] && choices_.may(unit, device);
}

double Partial::run(int op, int device) {
  LANCET_CHECK(admits(op, device), "op {} does not fit device {}", op, device);
  const double end = table_.run(op, device);
  const std::size_t unit = std::size_t(units_.of[std::size_t(op)]);
  if (std::isfinite(end) && device_of_unit_[unit] < 0) {
    device_of_unit_[unit] = device;
    left_mb_[std::size_t(device)] -= units_.mb[unit];
    choices_.choose(int(unit), device);
  }
  return end;
}

double Partial::end_on(int op, int device) {
  return start_on(op, device) + problem_.ops[std::size_t(op)].ms[std::size_t(device)];
}

bool Partial::is_ready(int op) const {
  if (table_.has_run(op)) return false;
  const auto& in = flows_.in[std::size_t(op)];
  return std::all_of(in.begin(), in.end(),
                     [&](int flow) { return table_.has_run(problem_.flows[std::size_t(flow)].from); });
}

Error no_device_left(std::string_view solver, const Problem& problem, int op) {
  const Op& of = problem.ops[std::size_t(op)];
  return config_error(
      fmt::format("{}: expected a device with memory left and a path for {}, found none; other solvers "
                  "may find a placement",
                  solver, shown(of.name)));
}

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
