// Problems of tests.
#pragma once
#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lancet/placement/problem.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement::test {

// ms: by op, of each device. All pairs of devices have one rate and one latency.
inline Problem problem_of(const std::vector<std::vector<double>>& ms, const std::vector<Flow>& flows,
                          double ms_per_mb = 1, double latency_ms = 0) {
  Problem problem;
  const std::size_t devices = ms.front().size();
  for (std::size_t i = 0; i < ms.size(); ++i)
    problem.ops.push_back({.name = "op" + std::to_string(i), .ms = ms[i], .mb = 1});
  problem.flows = flows;
  problem.ms_per_mb.assign(devices, std::vector<double>(devices, ms_per_mb));
  problem.latency_ms.assign(devices, std::vector<double>(devices, latency_ms));
  for (std::size_t k = 0; k < devices; ++k) {
    problem.devices.push_back({"device" + std::to_string(k), 1000});
    problem.ms_per_mb[k][k] = problem.latency_ms[k][k] = 0;
  }
  return problem;
}

// A chain op0 -> op1 -> ... with flows of 1 MB.
inline std::vector<Flow> chain(int ops) {
  std::vector<Flow> flows;
  for (int op = 0; op + 1 < ops; ++op) flows.push_back({op, op + 1, 1});
  return flows;
}

// Unlike devices and links; each op has some of the ops before it as predecessors; some ops are in groups. The memory
// of all devices together is twice what the ops need.
inline Problem random_problem(std::uint32_t seed, int ops, int devices, double edges, bool groups = true) {
  std::mt19937 random(seed);
  const auto uniform = [&](double least, double most) {
    return least + (most - least) * double(random() >> 8) / double(1 << 24);
  };
  std::vector<std::vector<double>> ms;
  std::vector<double> speed;
  for (int k = 0; k < devices; ++k) speed.push_back(uniform(0.5, 2));
  std::vector<Flow> flows;
  for (int op = 0; op < ops; ++op) {
    const double work = uniform(0.1, 4);
    ms.emplace_back();
    for (int k = 0; k < devices; ++k) ms.back().push_back(work * speed[std::size_t(k)] * uniform(0.8, 1.2));
    for (int before = 0; before < op; ++before)
      if (uniform(0, 1) < edges / double(op)) flows.push_back({before, op, uniform(0, 3)});
  }
  Problem problem = problem_of(ms, flows);
  double mb = 0;
  for (Op& op : problem.ops) {
    mb += op.mb = uniform(0, 10);
    if (groups && uniform(0, 1) < 0.3) op.group = int(uniform(0, 3));
  }
  for (int from = 0; from < devices; ++from) {
    problem.devices[std::size_t(from)].memory_mb = 2 * mb / devices;
    for (int to = 0; to < devices; ++to)
      if (from != to) {
        problem.ms_per_mb[std::size_t(from)][std::size_t(to)] = uniform(0.1, 1);
        problem.latency_ms[std::size_t(from)][std::size_t(to)] = uniform(0, 0.1);
      }
  }
  return problem;
}

inline void check_sound(const Problem& problem, const Placement& placement) {
  REQUIRE(violations(problem, placement) == std::vector<std::string>());
}

// The exact optimum of a small problem, by a method that shares nothing with the solvers: all assignments of ops to
// devices, and for each all orders of ops on devices and of flows on links. Earliest starts without the rules of one at
// a time are longest paths; while two tasks of one device or link overlap in them, one of the two orders is added and
// the other tried next. Branches that cannot be shorter than the best are left. Up to 9 ops and 3 devices. None: no
// assignment has the memory.
std::optional<double> brute_force_ms(const Problem& problem);

}  // namespace lancet::placement::test
