// Problems of tests, and a check of their answers.
#pragma once
#include <catch2/catch.hpp>
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

inline bool are_apart(const std::vector<Interval>& intervals) {
  for (std::size_t i = 0; i < intervals.size(); ++i)
    for (std::size_t j = i + 1; j < intervals.size(); ++j)
      if (intervals[i].start < intervals[j].end && intervals[j].start < intervals[i].end) return false;
  return true;
}

// Checks durations, precedence, one op at a time on a device and one flow on a link, memory, groups and the makespan.
inline void check_sound(const Problem& problem, const Placement& placement) {
  REQUIRE(placement.device.size() == problem.ops.size());
  REQUIRE(placement.flows.size() == problem.flows.size());
  std::vector<std::vector<Interval>> ops(problem.devices.size()), up = ops, down = ops;
  std::vector<double> mb(problem.devices.size(), 0);
  double latest = 0;
  for (std::size_t i = 0; i < problem.ops.size(); ++i) {
    const std::size_t k = std::size_t(placement.device[i]);
    REQUIRE(placement.ops[i].end - placement.ops[i].start == Approx(problem.ops[i].ms[k]).margin(1e-9));
    ops[k].push_back(placement.ops[i]);
    mb[k] += problem.ops[i].mb;
    latest = std::max(latest, placement.ops[i].end);
    for (std::size_t j = 0; j < i; ++j)
      if (problem.ops[i].group >= 0 && problem.ops[j].group == problem.ops[i].group)
        REQUIRE(placement.device[j] == placement.device[i]);
  }
  REQUIRE(placement.makespan_ms == latest);
  for (std::size_t i = 0; i < problem.flows.size(); ++i) {
    const Flow& flow = problem.flows[i];
    const int from = placement.device[std::size_t(flow.from)], to = placement.device[std::size_t(flow.to)];
    const Interval interval = placement.flows[i];
    REQUIRE(interval.end - interval.start == Approx(problem.flow_ms(flow, from, to)).margin(1e-9));
    REQUIRE(interval.start >= placement.ops[std::size_t(flow.from)].end);
    REQUIRE(interval.end <= placement.ops[std::size_t(flow.to)].start);
    if (from == to) continue;
    up[std::size_t(from)].push_back(interval);
    down[std::size_t(to)].push_back(interval);
  }
  for (std::size_t k = 0; k < problem.devices.size(); ++k) {
    REQUIRE(mb[k] <= problem.devices[k].memory_mb + 1e-9);
    REQUIRE(are_apart(ops[k]));
    REQUIRE(are_apart(up[k]));
    REQUIRE(are_apart(down[k]));
  }
}

}  // namespace lancet::placement::test
