// List schedulers. Earliest Task First has variants: m-SCT and GETF say for each ready op and device when it may start.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

#include "lancet/base/check.h"
#include "lancet/base/shown.h"
#include "lancet/placement/linear_solver.h"
#include "lancet/placement/solvers.h"

namespace lancet::placement {
namespace {

// A placement that is made op by op: the timetable of what is placed, and the memory that is left.
class Partial {
 public:
  explicit Partial(const Problem& problem);  // which outlives it
  // True if the op may run there: its unit is there already, or is nowhere yet and fits into the memory that is left.
  bool admits(int op, int device) const;
  // Runs an admitted op; its unit takes its memory with the first of its ops.
  void run(int op, int device);
  double start_on(int op, int device) { return admits(op, device) ? table_.start_on(op, device) : never; }
  double end_on(int op, int device);
  bool is_ready(int op) const;  // it has not run, and all its predecessors have

  const FlowsOfOps& flows() const { return flows_; }
  const Timetable& table() const { return table_; }
  Placement placement() const { return table_.placement(); }

 private:
  const Problem& problem_;
  const FlowsOfOps flows_;
  const Units units_;
  std::vector<int> device_of_unit_;  // -1: nowhere yet
  std::vector<double> left_mb_;      // by device
  Timetable table_;
};

Partial::Partial(const Problem& problem)
    : problem_(problem),
      flows_(flows_of_ops(problem)),
      units_(units_of(problem)),
      device_of_unit_(units_.ops.size(), -1),
      table_(problem) {
  for (const Device& device : problem.devices) left_mb_.push_back(device.memory_mb);
}

bool Partial::admits(int op, int device) const {
  const int unit = units_.of[std::size_t(op)], there = device_of_unit_[std::size_t(unit)];
  if (there >= 0) return there == device;
  return units_.mb[std::size_t(unit)] <= left_mb_[std::size_t(device)];
}

void Partial::run(int op, int device) {
  LANCET_CHECK(admits(op, device), "op {} does not fit device {}", op, device);
  table_.run(op, device);
  const std::size_t unit = std::size_t(units_.of[std::size_t(op)]);
  if (device_of_unit_[unit] < 0) left_mb_[std::size_t(device)] -= units_.mb[unit];
  device_of_unit_[unit] = device;
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

// The error of a list scheduler that finds no device for an op.
Error no_device_left(std::string_view solver, const Problem& problem, int op) {
  const Op& of = problem.ops[std::size_t(op)];
  return config_error(
      fmt::format("{}: expected a device with memory left for {}, found none; other solvers may find a placement",
                  solver, shown(of.name)));
}

struct EarliestStart {
  double ms = never;   // `never`: the op may not run on the device
  bool waits = false;  // it is taken only if all others wait, too
};
using StartOn = std::function<EarliestStart(Partial&, int op, int device)>;
// Called after an op has run.
using HasRun = std::function<void(const Partial&, int op)>;

// Runs the pair of a ready op and a device that starts first, until all ops have run.
Result<Placement> earliest_first(std::string_view solver, const Problem& problem, const StartOn& start_on,
                                 const HasRun& has_run = {}) {
  Partial partial(problem);
  const std::vector<double> ranks = upward_ranks(problem, partial.flows());
  std::vector<int> ready;
  for (int op = 0; op < problem.op_count(); ++op)
    if (partial.is_ready(op)) ready.push_back(op);
  while (!ready.empty()) {
    // Whether it waits, start, the rank downwards, end, op, device: the least is first.
    std::tuple<bool, double, double, double, int, int> first{true, never, 0, 0, -1, -1};
    for (const int op : ready)
      for (int device = 0; device < problem.device_count(); ++device) {
        const auto [start, waits] = start_on(partial, op, device);
        const double end = start + problem.ops[std::size_t(op)].ms[std::size_t(device)];
        if (start < never) first = std::min(first, {waits, start, -ranks[std::size_t(op)], end, op, device});
      }
    const auto [waits, start, rank, end, op, device] = first;
    if (op < 0) return no_device_left(solver, problem, ready.front());
    partial.run(op, device);
    ready.erase(std::find(ready.begin(), ready.end(), op));
    for (const int flow : partial.flows().out[std::size_t(op)])
      if (const int to = problem.flows[std::size_t(flow)].to; partial.is_ready(to)) ready.push_back(to);
    if (has_run) has_run(partial, op);
  }
  return partial.placement();
}

// The values of the columns at the optimum. Config errors: this build has no solver, or it found no optimum in a
// minute.
Result<std::vector<double>> linear_optimum(const LinearModel& model) {
  LANCET_ASSIGN(LinearAnswer answer, solve_linear(model));
  if (answer.status != LinearAnswer::Status::optimal)
    return config_error("expected an optimum of its linear program within 60 s, found none");
  return std::move(answer.values);
}

}  // namespace

Result<Placement> etf(const Problem& problem) {
  return earliest_first("etf", problem, [](Partial& partial, int op, int device) -> EarliestStart {
    return {partial.start_on(op, device), false};
  });
}

Result<Placement> heft(const Problem& problem) {
  Partial partial(problem);
  for (const int op : order_by(upward_ranks(problem, partial.flows()))) {
    int best = -1;
    double end = never;
    for (int device = 0; device < problem.device_count(); ++device)
      if (const double here = partial.end_on(op, device); here < end) end = here, best = device;
    if (best < 0) return no_device_left("heft", problem, op);
    partial.run(op, best);
  }
  return partial.placement();
}

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
namespace {

constexpr double ratio = 2;

struct SpeedGroup {
  std::vector<int> devices;
  double speed = 0;  // of all devices together
  double memory_mb = 0;
};

// The inverse of the time that each device takes for all ops.
std::vector<double> speeds(const Problem& problem) {
  std::vector<double> total(problem.devices.size(), 0);
  for (const Op& op : problem.ops)
    for (std::size_t k = 0; k < total.size(); ++k) total[k] += op.ms[k];
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

// The mean over the devices of the group.
double ms_in_group(const Op& op, const SpeedGroup& group) {
  double sum = 0;
  for (const int device : group.devices) sum += op.ms[std::size_t(device)];
  return sum / double(group.devices.size());
}

// Columns: x of op j and group g at j * groups + g, then the end of each op, then T.
LinearModel groups_model(const Problem& problem, const std::vector<SpeedGroup>& groups) {
  LinearModel model;
  const int count = int(groups.size()), ops = problem.op_count();
  const auto ms = [&](int op, int group) {
    return ms_in_group(problem.ops[std::size_t(op)], groups[std::size_t(group)]);
  };
  for (int share = 0; share < ops * count; ++share) model.add_column({.upper = 1});
  for (int op = 0; op < ops; ++op) model.add_column({});
  const int makespan = model.add_column({.cost = 1});
  const auto share = [&](int op, int group) { return op * count + group; };
  const auto end = [&](int op) { return ops * count + op; };
  // The end of an op less its time: not before the end of another.
  const auto add_chain = [&](int op, std::vector<Term> terms) {
    terms.push_back({end(op), 1});
    for (int group = 0; group < count; ++group) terms.push_back({share(op, group), -ms(op, group)});
    model.add_row(0, unbounded, std::move(terms));
  };
  std::vector<std::vector<Term>> load(groups.size()), memory(groups.size());
  for (int op = 0; op < ops; ++op) {
    std::vector<Term> shares;
    for (int group = 0; group < count; ++group) {
      shares.push_back({share(op, group), 1});
      load[std::size_t(group)].push_back({share(op, group), -ms(op, group)});
      memory[std::size_t(group)].push_back({share(op, group), problem.ops[std::size_t(op)].mb});
    }
    model.add_row(1, 1, shares);
    model.add_row(0, unbounded, {{makespan, 1}, {end(op), -1}});
    add_chain(op, {});
  }
  for (const Flow& flow : problem.flows) add_chain(flow.to, {{end(flow.from), -1}});
  for (std::size_t group = 0; group < groups.size(); ++group) {
    load[group].push_back({makespan, double(groups[group].devices.size())});
    model.add_row(0, unbounded, load[group]);
    model.add_row(-unbounded, groups[group].memory_mb, memory[group]);
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

// m-SCT: ETF with favourite children (Hanen and Munier, 1995; with memory: Baechi, Jeon et al., 2020, section 3.2).
//
// The linear program has an e in [0, 1] for each flow, 0 where its reader is its maker's favourite child and begins
// without communication: min w, s_i + p_i + c_ij e_ij <= s_j, s_i + p_i <= w, and of the flows that leave or enter an
// op at most one has e = 0. Times are means over devices and pairs. Flows of e <= 0.5 are taken in rising order of e,
// and only if maker and reader have no favourite yet: at exactly 0.5 two children could be favourites at once.
//
// Then ops run as in ETF, but a device waits for the favourite child of the op that it ran last: another op may run
// there only if its operands have arrived by the time the device is idle, or if no other pair is left.
namespace {

constexpr double rounding = 0.5, tolerance = 1e-6;

// Columns: e of each flow, then the start of each op, then the makespan.
LinearModel favourites_model(const Problem& problem) {
  const FlowsOfOps flows = flows_of_ops(problem);
  LinearModel model;
  const int flow_count = int(problem.flows.size());
  for (int flow = 0; flow < flow_count; ++flow) model.add_column({.upper = 1});
  for (int op = 0; op < problem.op_count(); ++op) model.add_column({});
  const int makespan = model.add_column({.cost = 1});
  const auto start = [&](int op) { return flow_count + op; };
  for (int flow = 0; flow < flow_count; ++flow) {
    const Flow& of = problem.flows[std::size_t(flow)];
    model.add_row(mean_ms(problem.ops[std::size_t(of.from)]), unbounded,
                  {{start(of.to), 1}, {start(of.from), -1}, {flow, mean_flow_ms(problem, of) * -1}});
  }
  for (int op = 0; op < problem.op_count(); ++op) {
    model.add_row(mean_ms(problem.ops[std::size_t(op)]), unbounded, {{makespan, 1}, {start(op), -1}});
    for (const auto* ends : {&flows.in, &flows.out}) {
      const std::vector<int>& of = (*ends)[std::size_t(op)];
      std::vector<Term> terms;
      for (const int flow : of) terms.push_back({flow, 1});
      if (of.size() > 1) model.add_row(double(of.size()) - 1, unbounded, terms);
    }
  }
  return model;
}

// By op: its favourite child, or -1.
Result<std::vector<int>> favourite_children(const Problem& problem) {
  LANCET_ASSIGN(const std::vector<double> e, linear_optimum(favourites_model(problem)));
  std::vector<int> order(problem.flows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return e[std::size_t(a)] < e[std::size_t(b)]; });
  std::vector<int> child(problem.ops.size(), -1), parent(problem.ops.size(), -1);
  for (const int flow : order) {
    const Flow& of = problem.flows[std::size_t(flow)];
    if (e[std::size_t(flow)] > rounding + tolerance) break;
    if (child[std::size_t(of.from)] >= 0 || parent[std::size_t(of.to)] >= 0) continue;
    child[std::size_t(of.from)] = of.to;
    parent[std::size_t(of.to)] = of.from;
  }
  return child;
}

}  // namespace

Result<Placement> msct(const Problem& problem) {
  auto children = favourite_children(problem);
  if (!children.ok()) return Error{children.error().code, "msct: " + children.error().message};
  std::vector<int> last(problem.devices.size(), -1);  // by device: the op that it ran last
  const auto start_on = [&](Partial& partial, int op, int device) -> EarliestStart {
    const double start = partial.start_on(op, device);
    const int before = last[std::size_t(device)];
    const int awaited = before >= 0 ? (*children)[std::size_t(before)] : -1;
    const bool waits = awaited >= 0 && awaited != op && !partial.table().has_run(awaited) &&
                       partial.admits(awaited, device) && start > partial.table().end(before);
    return {start, waits};
  };
  return earliest_first("msct", problem, start_on,
                        [&](const Partial& partial, int op) { last[std::size_t(partial.table().device(op))] = op; });
}

Result<Placement> even(const Problem& problem) {
  const Units units = units_of(problem);
  Partial partial(problem);
  for (int op = 0; op < problem.op_count(); ++op) {
    const int device = units.of[std::size_t(op)] * problem.device_count() / units.count();
    if (!partial.admits(op, device)) return no_device_left("even", problem, op);
    partial.run(op, device);
  }
  return partial.placement();
}

}  // namespace lancet::placement
