// Two lower bounds. The chain: the longest path of ops, each on its fastest device. The load: for any weights w of the
// devices, not negative and of sum 1, a placement of makespan T spends at most T on each device, so
// T >= sum_k w_k load_k >= sum over ops of min_k w_k ms_k. The best weights are the dual of the linear program that
// splits ops among devices at will; multiplicative updates approach them, and any weights give a bound.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lancet/base/shown.h"
#include "lancet/placement/solvers.h"
#include "lancet/placement/timetable.h"

namespace lancet::placement {
namespace {

double longest_chain(const Problem& problem) {
  std::vector<double> ends(problem.ops.size(), 0);
  const FlowsOfOps flows = flows_of_ops(problem);
  double longest = 0;
  for (std::size_t op = 0; op < ends.size(); ++op) {
    for (const int flow : flows.in[op])
      ends[op] = std::max(ends[op], ends[std::size_t(problem.flows[std::size_t(flow)].from)]);
    ends[op] += std::ranges::min(problem.ops[op].ms);
    longest = std::max(longest, ends[op]);
  }
  return longest;
}

// sum over ops of min_k w_k ms_k. load: of each device, where each op is on the device of its minimum.
double weighted_load(const Problem& problem, const std::vector<double>& weights, std::vector<double>& load) {
  load.assign(weights.size(), 0);
  double sum = 0;
  for (const Op& op : problem.ops) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < weights.size(); ++k)
      if (weights[k] * op.ms[k] < least) least = weights[k] * op.ms[k], best = k;
    load[best] += op.ms[best];
    sum += least;
  }
  return sum;
}

double load_bound(const Problem& problem) {
  constexpr int rounds = 200;
  std::vector<double> weights(problem.devices.size(), 1.0 / double(problem.devices.size())), load;
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    best = std::max(best, weighted_load(problem, weights, load));
    const double most = std::ranges::max(load), rate = 1 / std::sqrt(round + 4.0);
    if (most <= 0) break;
    for (std::size_t k = 0; k < weights.size(); ++k) weights[k] *= std::exp(rate * (load[k] / most - 1));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= sum;
  }
  return best;
}

}  // namespace

double lower_bound_ms(const Problem& problem) {
  if (problem.ops.empty()) return 0;
  return std::max(longest_chain(problem), load_bound(problem));
}

Status check_problem(const Problem& problem) {
  const Units units = units_of(problem);
  double needed = 0, there = 0, largest = 0;
  for (const Device& device : problem.devices) {
    there += device.memory_mb;
    largest = std::max(largest, device.memory_mb);
  }
  for (int unit = 0; unit < units.count(); ++unit) {
    const double mb = units.mb[std::size_t(unit)];
    const std::vector<int>& ops = units.ops[std::size_t(unit)];
    needed += mb;
    if (mb > largest)
      return config_error(
          fmt::format("expected a device that holds {}{}, {:.1f} MB, found none: the largest has {:.1f} MB",
                      shown(problem.ops[std::size_t(ops.front())].name), ops.size() > 1 ? " and the ops beside it" : "",
                      mb, largest));
  }
  if (needed > there)
    return config_error(fmt::format(
        "expected at least {:.1f} MB of memory in all devices together, which all ops need, found {:.1f} MB", needed,
        there));
  return {};
}

}  // namespace lancet::placement
