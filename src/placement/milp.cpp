// How it works. The rows that keep two ops off one device at the same time, and two flows off one link, are most of the
// program, and hardly any of them matters in the end. So it is solved without them first, which gives a bound; then
// pairs that the answer lets run at the same time get their rows, and it is solved again, until an answer needs no more
// or the time is over. Every answer's devices make a placement by our own timetable, so that the best one is known
// whenever the time ends.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <queue>
#include <set>

#include "lancet/base/check.h"
#include "lancet/base/clock.h"
#include "lancet/placement/solvers.h"
#include "milp_model.h"

namespace lancet::placement {
namespace {

constexpr double proof_tolerance = 1e-5;  // relative: what the solver's own tolerances allow
// What tasks may overlap by, in units of the program's time: a millionth of the horizon, as CBC's tolerances allow.
constexpr double overlap_allowed = 1e-4;

using Clock = std::chrono::steady_clock;

// Equal devices in the order in which the units use them first.
void order_twins(const MilpModel& model, Placement& placement) {
  std::vector<int> root(model.twin.size()), renamed(model.twin.size(), -1), used(model.twin.size(), -1);
  for (std::size_t k = 0; k < root.size(); ++k) root[k] = model.twin[k] < 0 ? int(k) : root[slot(model.twin[k])];
  const auto next_of = [&](int class_root) {
    int device = used[slot(class_root)] + 1;
    while (root[slot(device)] != class_root) ++device;
    return used[slot(class_root)] = device;
  };
  for (const auto& ops : model.units.ops) {
    const int device = placement.device[slot(ops.front())];
    if (renamed[slot(device)] < 0) renamed[slot(device)] = next_of(root[slot(device)]);
  }
  for (int& device : placement.device) device = renamed[slot(device)];
}

// The device of each op in an answer.
std::vector<int> milp_devices(const MilpModel& model, const Problem& problem, const std::vector<double>& values) {
  std::vector<int> device(problem.ops.size(), 0);
  for (int op = 0; op < problem.op_count(); ++op) {
    const auto& on = model.on[slot(model.units.of[slot(op)])];
    for (int k = 0; k < problem.device_count(); ++k)
      if (values[slot(on[slot(k)])] > 0.5) device[slot(op)] = k;
  }
  return device;
}

}  // namespace

std::vector<double> milp_start(const MilpModel& model, const Problem& problem, Placement placement) {
  order_twins(model, placement);
  std::vector<double> values(model.linear.columns.size(), 0);
  for (std::size_t u = 0; u < model.on.size(); ++u)
    values[slot(model.on[u][slot(placement.device[slot(model.units.ops[u].front())])])] = 1;
  const int ops = problem.op_count();
  const auto interval = [&](int task) {
    return task < ops ? placement.ops[slot(task)] : placement.flows[slot(task - ops)];
  };
  const auto meet = [&](int task, int other) {
    const auto device = [&](int op) { return placement.device[slot(op)]; };
    if (task < ops) return device(task) == device(other);
    const Flow &q = problem.flows[slot(task - ops)], &r = problem.flows[slot(other - ops)];
    if (device(q.from) == device(q.to) || device(r.from) == device(r.to)) return false;
    return device(q.from) == device(r.from) || device(q.to) == device(r.to);
  };
  for (const MilpPair& pair : model.pairs)
    if (pair.before >= 0 && meet(pair.first, pair.second) && interval(pair.first).end <= interval(pair.second).start)
      values[slot(pair.before)] = 1;
  return values;
}

Placement milp_placement(const MilpModel& model, const Problem& problem, const std::vector<double>& values) {
  const int ops = problem.op_count();
  const std::vector<int> device = milp_devices(model, problem, values);
  // Of what may run, what starts first: starts may precede their predecessors' ends by the solver's tolerance.
  const FlowsOfOps flows = flows_of_ops(problem);
  using Entry = std::pair<double, int>;  // start, task
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::vector<std::size_t> waits(slot(ops));
  const auto push = [&](int task) { ready.emplace(values[slot(model.start[slot(task)])], task); };
  const auto arrived = [&](int op) {
    if (--waits[slot(op)] == 0) push(op);
  };
  for (int op = 0; op < ops; ++op) {
    waits[slot(op)] = flows.in[slot(op)].size();
    if (waits[slot(op)] == 0) push(op);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int task = ready.top().second;
    ready.pop();
    order.push_back(task);
    if (task >= ops) {
      arrived(problem.flows[slot(task - ops)].to);
      continue;
    }
    for (const int flow : flows.out[slot(task)]) {
      const int reader = problem.flows[slot(flow)].to;
      if (device[slot(reader)] == device[slot(task)])
        arrived(reader);
      else
        push(ops + flow);
    }
  }
  return timetable(problem, device, order);
}

namespace {

struct TimedTask {
  double start = 0, end = 0;
  int task = 0;
};

void add_overlaps(std::vector<TimedTask>& tasks, std::set<std::pair<int, int>>& pairs) {
  std::sort(tasks.begin(), tasks.end(), [](const TimedTask& a, const TimedTask& b) { return a.start < b.start; });
  for (std::size_t i = 0; i < tasks.size(); ++i)
    for (std::size_t j = i + 1; j < tasks.size() && tasks[j].start < tasks[i].end - overlap_allowed; ++j)
      if (tasks[j].end - tasks[j].start > overlap_allowed) pairs.insert(std::minmax(tasks[i].task, tasks[j].task));
}

// Pairs of ops, and of flows, that take one device or link at the same time in an answer.
std::set<std::pair<int, int>> conflicts(const MilpModel& model, const Problem& problem,
                                        const std::vector<double>& values) {
  const std::vector<int> device = milp_devices(model, problem, values);
  const std::size_t devices = problem.devices.size();
  std::vector<std::vector<TimedTask>> takers(3 * devices);  // of the devices, the uplinks and the downlinks
  const auto timed = [&](int task, double ms) {
    const double start = values[slot(model.start[slot(task)])];
    return TimedTask{start, start + ms / model.scale, task};
  };
  for (int op = 0; op < problem.op_count(); ++op) {
    const int k = device[slot(op)];
    takers[slot(k)].push_back(timed(op, problem.ops[slot(op)].ms[slot(k)]));
  }
  for (int flow = 0; flow < int(problem.flows.size()); ++flow) {
    const Flow& of = problem.flows[slot(flow)];
    const int from = device[slot(of.from)], to = device[slot(of.to)];
    if (from == to) continue;
    const TimedTask task = timed(problem.op_count() + flow, problem.flow_ms(of, from, to));
    takers[devices + slot(from)].push_back(task);
    takers[2 * devices + slot(to)].push_back(task);
  }
  std::set<std::pair<int, int>> pairs;
  for (std::vector<TimedTask>& tasks : takers) add_overlaps(tasks, pairs);
  return pairs;
}

void check_valid(const Problem& problem, const Placement& placement, const char* what) {
  const auto broken = violations(problem, placement);
  LANCET_CHECK(broken.empty(), "{} breaks {} rules, the first: {}", what, broken.size(), broken.front());
}

bool has_values(const LinearAnswer& answer) {
  return answer.status == LinearAnswer::Status::optimal || answer.status == LinearAnswer::Status::feasible;
}

// The shortest of a placement, if it is one, and those of all answers of CBC, none of which is taken on trust: CBC
// keeps to its rows only within tolerances, and the program may lack rows. Each answer has its own order and that of
// the longest chains under its devices.
void shorten(Placement& best, const Problem& problem, const MilpModel& model, const LinearAnswer& solved) {
  const FlowsOfOps flows = flows_of_ops(problem);
  const auto consider = [&](Placement found) {
    if (violations(problem, found).empty() && (best.device.empty() || found.makespan_ms < best.makespan_ms))
      best = std::move(found);
  };
  const auto consider_both = [&](const std::vector<double>& values) {
    consider(milp_placement(model, problem, values));
    const std::vector<int> device = milp_devices(model, problem, values);
    consider(timetable(problem, device, order_by(upward_ranks(problem, flows, device))));
  };
  if (has_values(solved)) consider_both(solved.values);
  for (const std::vector<double>& values : solved.earlier) consider_both(values);
}

Error no_answer(const Problem& problem, const LinearAnswer& answer, double seconds) {
  if (answer.status == LinearAnswer::Status::infeasible)
    return config_error(
        fmt::format("no placement of {} ops on {} devices has enough memory: expected one, "
                    "found a proof that there is none",
                    problem.op_count(), problem.device_count()));
  const char* found = answer.is_time_over  ? "found none"
                      : has_values(answer) ? "found one only within CBC's tolerances"
                                           : "found a failure of CBC";
  return config_error(fmt::format("the integer program: expected a placement within {} s, {}",
                                  seconds < 1 ? fmt::format("{:.3g}", seconds) : fmt::format("{:.1f}", seconds),
                                  found));
}

class MilpSolver {
 public:
  MilpSolver(const Problem& problem, const MilpOptions& options, Clock::time_point begin)
      : problem_(problem),
        options_(options),
        begin_(begin),
        program_(problem, options.start ? options.start->makespan_ms : serial_ms(problem)) {
    if (options.start) answer_.placement = *options.start;
    answer_.bound_ms = std::max(program_.model().bound_ms, lower_bound_ms(problem));
  }

  Result<MilpAnswer> operator()() {
    std::optional<MilpAnswer::End> ended;
    if (is_proven()) ended = MilpAnswer::End::proof;
    while (!ended) {
      LANCET_TRY(solve());
      ended = end();
    }
    if (!has_placement()) return no_answer(problem_, solved_, options_.seconds);
    if (is_above_answer()) {
      ended = MilpAnswer::End::tolerances;
      answer_.bound_ms = lower_bound_ms(problem_);
    }
    answer_.bound_ms = std::min(answer_.placement.makespan_ms, answer_.bound_ms);
    answer_.end = *ended;
    return std::move(answer_);
  }

 private:
  bool has_placement() const { return answer_.placement.device.size() == problem_.ops.size(); }
  bool is_above_answer() const { return answer_.gap() < -proof_tolerance; }  // the bound, which is wrong then
  bool is_proven() const { return has_placement() && answer_.gap() <= proof_tolerance && !is_above_answer(); }

  Status solve() {
    const MilpModel& model = program_.model();
    const double left = options_.seconds - seconds_since(begin_);
    LinearOptions linear{.seconds = std::max(0.01, left), .bound = answer_.bound_ms / model.scale};
    if (has_placement()) linear.start = milp_start(model, problem_, answer_.placement);
    LANCET_ASSIGN(solved_, solve_linear(model.linear, linear));
    answer_.bound_ms = std::max(answer_.bound_ms, solved_.bound * model.scale);
    shorten(answer_.placement, problem_, model, solved_);
    return {};
  }

  // What ends the program; nothing if it is solved again, with the pairs that the last answer did without.
  std::optional<MilpAnswer::End> end() {
    using End = MilpAnswer::End;
    using LinearStatus = LinearAnswer::Status;
    if (is_proven()) return End::proof;
    if (solved_.is_time_over || seconds_since(begin_) >= options_.seconds) return End::time;
    if (solved_.status == LinearStatus::infeasible) return End::tolerances;
    if (solved_.status != LinearStatus::optimal) return End::fault;
    bool added = false;
    for (const auto& [first, second] : conflicts(program_.model(), problem_, solved_.values))
      added |= program_.add_pair(first, second);
    if (!added) return End::tolerances;
    if (has_placement()) program_.tighten(answer_.placement.makespan_ms);
    return {};
  }

  const Problem& problem_;
  const MilpOptions& options_;
  const Clock::time_point begin_;
  MilpProgram program_;
  LinearAnswer solved_;  // the last one
  MilpAnswer answer_;
};

}  // namespace

Result<MilpAnswer> solve_milp(const Problem& problem, const MilpOptions& options) {
  const auto begin = Clock::now();
  if (linear_solver().empty()) return solve_linear({}).error();
  LANCET_TRY(check_problem(problem));
  if (options.start) check_valid(problem, *options.start, "the start of the integer program");
  return MilpSolver(problem, options, begin)();
}

}  // namespace lancet::placement
