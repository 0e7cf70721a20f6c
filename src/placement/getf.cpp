// GETF: ETF within groups of devices of like speed (Su, Ren, Vardi and Wierman, 2020, section 3).
//
// Devices of like speed are a group: speeds that round down to the same power of `ratio`, relative to the fastest. A
// linear program (after Chudak and Shmoys, 1999) gives each op a share x of each group: min T, sum_g x_gj = 1,
// C_j >= C_i + sum_g t_gj x_gj for a flow from i to j, C_j <= T, sum_j t_gj x_gj <= m_g T for the m_g devices of a
// group, and, since devices hold what runs on them, sum_j mb_j x_gj <= the group's memory. The groups that are at least
// as fast as the slowest one with which they have half of an op together may run it; of these it gets the one of the
// greatest speed in all. Then ops run as in ETF, each on the devices of its group. The program sees no flows: GETF's
// bound has them as a sum on one chain.
//
// The paper's ratio, log m / log log m of m devices, is meant for many; for the few of a cluster it is Chudak and
// Shmoys's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "earliest_first.h"
#include "lancet/placement/solvers.h"
#include "linear_optimum.h"

namespace lancet::placement {
namespace {

constexpr double ratio = 2;

struct SpeedGroup {
  std::vector<int> devices;
  double speed = 0;  // of all devices together
  double memory_mb = 0;
};

// The inverse of the time that each device takes for all ops; one that it cannot run counts with its mean.
std::vector<double> speeds(const Problem& problem) {
  std::vector<double> total(problem.devices.size(), 0);
  for (const Op& op : problem.ops)
    for (std::size_t k = 0; k < total.size(); ++k) total[k] += std::isfinite(op.ms[k]) ? op.ms[k] : mean_ms(op);
  for (double& time : total) time = time > 0 ? 1 / time : 1;
  return total;
}

std::vector<SpeedGroup> speed_groups(const Problem& problem) {  // the fastest first
  const std::vector<double> speed = speeds(problem);
  std::map<int, SpeedGroup> by_power;
  const double fastest = std::ranges::max(speed);
  for (std::size_t k = 0; k < speed.size(); ++k) {
    SpeedGroup& group = by_power[int(std::floor(std::log(fastest / speed[k]) / std::log(ratio) + 1e-9))];
    group.devices.push_back(int(k));
    group.speed += speed[k];
    group.memory_mb += problem.devices[k].memory_mb;
  }
  std::vector<SpeedGroup> groups;
  for (auto& [_, group] : by_power) groups.push_back(std::move(group));
  return groups;
}

// The mean over the devices of the group that can run the op; infinite if none can.
double ms_in_group(const Op& op, const SpeedGroup& group) {
  double sum = 0;
  int count = 0;
  for (const int device : group.devices)
    if (std::isfinite(op.ms[std::size_t(device)])) sum += op.ms[std::size_t(device)], ++count;
  return count > 0 ? sum / count : never;
}

// Columns: x of op j and group g at j * groups + g, then the end of each op, then T.
LinearModel groups_model(const Problem& problem, const std::vector<SpeedGroup>& groups) {
  LinearModel model;
  const int count = int(groups.size()), ops = problem.op_count();
  const auto ms = [&](int op, int group) {
    return ms_in_group(problem.ops[std::size_t(op)], groups[std::size_t(group)]);
  };
  for (int op = 0; op < ops; ++op)
    for (int group = 0; group < count; ++group)
      model.add_column({.name = fmt::format("x{}_{}", op, group), .upper = std::isfinite(ms(op, group)) ? 1.0 : 0.0});
  for (int op = 0; op < ops; ++op) model.add_column({.name = fmt::format("c{}", op)});
  const int makespan = model.add_column({.name = "t", .cost = 1});
  const auto share = [&](int op, int group) { return op * count + group; };
  const auto end = [&](int op) { return ops * count + op; };
  // The end of an op less its time: not before the end of another.
  const auto add_chain = [&](std::string name, int op, std::vector<Term> terms) {
    terms.push_back({end(op), 1});
    for (int group = 0; group < count; ++group)
      if (std::isfinite(ms(op, group))) terms.push_back({share(op, group), -ms(op, group)});
    model.add_row(std::move(name), 0, unbounded, std::move(terms));
  };
  std::vector<std::vector<Term>> load(groups.size()), memory(groups.size());
  for (int op = 0; op < ops; ++op) {
    std::vector<Term> shares;
    for (int group = 0; group < count; ++group) {
      shares.push_back({share(op, group), 1});
      if (!std::isfinite(ms(op, group))) continue;
      load[std::size_t(group)].push_back({share(op, group), -ms(op, group)});
      memory[std::size_t(group)].push_back({share(op, group), problem.ops[std::size_t(op)].mb});
    }
    model.add_row(fmt::format("whole{}", op), 1, 1, shares);
    model.add_row(fmt::format("last{}", op), 0, unbounded, {{makespan, 1}, {end(op), -1}});
    add_chain(fmt::format("first{}", op), op, {});
  }
  for (std::size_t flow = 0; flow < problem.flows.size(); ++flow)
    add_chain(fmt::format("flow{}", flow), problem.flows[flow].to, {{end(problem.flows[flow].from), -1}});
  for (std::size_t group = 0; group < groups.size(); ++group) {
    load[group].push_back({makespan, double(groups[group].devices.size())});
    model.add_row(fmt::format("load{}", group), 0, unbounded, load[group]);
    model.add_row(fmt::format("memory{}", group), -unbounded, groups[group].memory_mb, memory[group]);
  }
  return model;
}

// By op: the group that runs it.
Result<std::vector<int>> groups_of_ops(const Problem& problem, const std::vector<SpeedGroup>& groups) {
  if (groups.size() == 1) return std::vector<int>(problem.ops.size(), 0);
  LANCET_ASSIGN(const std::vector<double> x, linear_optimum(groups_model(problem, groups)));
  std::vector<int> chosen;
  for (std::size_t op = 0; op < problem.ops.size(); ++op) {
    double shares = 0;
    int best = 0;
    for (std::size_t group = 0; group < groups.size() && shares < 0.5 - 1e-6; ++group) {
      shares += x[op * groups.size() + group];
      if (groups[group].speed > groups[std::size_t(best)].speed) best = int(group);
    }
    chosen.push_back(best);
  }
  return chosen;
}

}  // namespace

Result<Placement> getf(const Problem& problem) {
  const std::vector<SpeedGroup> groups = speed_groups(problem);
  auto group_of_op = groups_of_ops(problem, groups);
  if (!group_of_op.ok()) return Error{group_of_op.error().code, "getf: " + group_of_op.error().message};
  const auto start_on = [&](Partial& partial, int op, int device) -> EarliestStart {
    const std::vector<int>& devices = groups[std::size_t((*group_of_op)[std::size_t(op)])].devices;
    const bool inside = std::find(devices.begin(), devices.end(), device) != devices.end();
    const auto admits = [&](int other) { return partial.admits(op, other); };
    if (!inside && std::any_of(devices.begin(), devices.end(), admits)) return {never, true};
    return {partial.start_on(op, device), false};
  };
  return earliest_first("getf", problem, start_on);
}

}  // namespace lancet::placement
