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

}  // namespace lancet::placement
