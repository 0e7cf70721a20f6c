// How the program is built. Moirai's equations are in parentheses; x, S, T and d are its letters.
//
// - x(unit, device) binary, one device for a unit (4c), memory by device (5).
// - u(flow, k, l) >= 0: the flow goes from device k to l. Moirai's rows (7) for z and u follow from
//   sum_l u(k, l) = x of the maker on k and sum_k u(k, l) = x of the reader on l, z = sum of u with k != l. This form
//   makes the linear relaxation of a chain of ops exact. Flows between the same two units have the same u.
// - Durations (4b) are sums over x and u, so that ends need no columns. Starts: reader >= flow's end >= flow's start >=
//   maker's end (4a).
// - Two ops without precedence (6) have one binary `before` and a bounded column `after` with
//   before + after >= x(i, k) + x(j, k) - 1 for each device k, and start(j) >= end(i) - M (1 - before), and the reverse
//   with `after`. Two flows likewise (8), with what leaves or enters device k in place of x: sums of u.
// - Pairs are added one by one, as answers need them (milp.cpp).
// - M is the latest end of the one less the earliest start of the other, from longest paths and the horizon. An order
//   that these exclude has no column.
// - Beyond Moirai: heads and tails by device, T >= head + load + tail of ops that share a device and of all flows of a
//   link, and devices that are equal in all things are used in the order of their numbers.
#include "milp_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace lancet::placement {
namespace {

constexpr double horizon_units = 100;
constexpr double horizon_slack = 1e-6;      // the solver's tolerance must not cut the start off
constexpr std::size_t most_load_rows = 20;  // of a device: those that bind first

using Terms = std::vector<Term>;
void append(Terms& terms, const Terms& more, double factor = 1) {
  for (const Term& term : more) terms.push_back({term.column, factor * term.factor});
}

}  // namespace

class MilpProgram::Builder {
 public:
  Builder(const Problem& problem, double horizon_ms)
      : problem_(problem),
        horizon_ms_(horizon_ms * (1 + horizon_slack)),
        slack_(2 * horizon_slack * horizon_ms),
        reach_(problem) {
    model_.units = units_of(problem);
    model_.scale = horizon_ms > 0 ? horizon_ms / horizon_units : 1;
    windows_ = windows(problem, model_.units, horizon_ms_);
    model_.bound_ms = windows_.bound_ms;
    add_makespan();
    add_devices();
    add_twins();
    for (int flow = 0; flow < flow_count(); ++flow) add_paths(flow);
    add_starts();
    add_precedence();
    for (int k = 0; k < problem_.device_count(); ++k) add_load(k), add_link_load(k);
  }

  MilpModel& model() { return model_; }
  // Two ops, or two flows; nothing if one of them precedes the other or they are a pair already. True if that adds
  // rows.
  bool add_pair(int first, int second) {
    if (ordered(first, second) || !paired_.emplace(first, second).second) return false;
    const std::size_t before = model_.linear.rows.size();
    const int ops = problem_.op_count();
    if (second < ops)
      add_pair_of_ops(first, second);
    else if (first >= ops && moves(first - ops) && moves(second - ops))
      add_pair_of_flows(first - ops, second - ops);
    return model_.linear.rows.size() > before;
  }

 private:
  int flow_count() const { return static_cast<int>(problem_.flows.size()); }
  int task_of(int flow) const { return problem_.op_count() + flow; }
  int unit(int op) const { return model_.units.of[slot(op)]; }
  double ms(int op, int k) const { return problem_.ops[slot(op)].ms[slot(k)]; }
  bool may(int op, int k) const { return windows_.may[slot(unit(op))][slot(k)]; }
  double head(int op, int k) const { return windows_.head[slot(op)][slot(k)]; }
  double tail(int op, int k) const { return windows_.tail[slot(op)][slot(k)]; }
  int x(int op, int k) const { return model_.on[slot(unit(op))][slot(k)]; }
  bool ordered(int task, int other) const { return reach_.precedes(task, other) || reach_.precedes(other, task); }
  // A flow within a unit stays on its device.
  bool moves(int flow) const { return unit(problem_.flows[slot(flow)].from) != unit(problem_.flows[slot(flow)].to); }
  double units(double milliseconds) const { return milliseconds / model_.scale; }
  int start(int task) const { return model_.start[slot(task)]; }

  void row(double lower, double upper, Terms terms) { model_.linear.add_row(lower, upper, std::move(terms)); }

  void add_makespan() {
    model_.makespan = model_.linear.add_column({units(model_.bound_ms), units(horizon_ms_), 1, false});
  }

  void add_devices() {
    LinearModel& linear = model_.linear;
    for (int u = 0; u < model_.units.count(); ++u) {
      model_.on.emplace_back();
      Terms one;
      for (int k = 0; k < problem_.device_count(); ++k) {
        const double upper = windows_.may[slot(u)][slot(k)] ? 1 : 0;
        model_.on.back().push_back(linear.add_column({0, upper, 0, true}));
        one.push_back({model_.on.back().back(), 1});
      }
      row(1, 1, one);
    }
    for (int k = 0; k < problem_.device_count(); ++k) {
      Terms held;
      double all = 0;
      for (int u = 0; u < model_.units.count(); ++u) {
        held.push_back({model_.on[slot(u)][slot(k)], model_.units.mb[slot(u)]});
        all += model_.units.mb[slot(u)];
      }
      const double limit = problem_.devices[slot(k)].memory_mb;
      if (all > limit) row(-unbounded, limit, held);
    }
  }

  bool equal(int k, int l) const {
    if (problem_.devices[slot(k)].memory_mb != problem_.devices[slot(l)].memory_mb) return false;
    for (int op = 0; op < problem_.op_count(); ++op)
      if (ms(op, k) != ms(op, l)) return false;
    for (const auto* rates : {&problem_.ms_per_mb, &problem_.latency_ms}) {
      if ((*rates)[slot(k)][slot(l)] != (*rates)[slot(l)][slot(k)]) return false;
      for (std::size_t other = 0; other < rates->size(); ++other)
        if (other != slot(k) && other != slot(l) &&
            ((*rates)[slot(k)][other] != (*rates)[slot(l)][other] ||
             (*rates)[other][slot(k)] != (*rates)[other][slot(l)]))
          return false;
    }
    return true;
  }

  // A unit is on a device only if an earlier unit is on the device's twin.
  void add_twins() {
    for (int k = 0; k < problem_.device_count(); ++k) {
      int twin = k - 1;
      while (twin >= 0 && !equal(twin, k)) --twin;
      model_.twin.push_back(twin);
      if (twin < 0) continue;
      Terms earlier;
      for (int u = 0; u < model_.units.count(); ++u) {
        Terms terms = earlier;
        terms.push_back({model_.on[slot(u)][slot(k)], -1});
        row(0, unbounded, terms);
        earlier.push_back({model_.on[slot(u)][slot(twin)], 1});
      }
    }
  }

  struct Path {
    int from = 0, to = 0, column = 0;
  };

  void add_paths(int index) {
    paths_.push_back({});
    if (!moves(index)) return;
    const Flow& flow = problem_.flows[slot(index)];
    const auto units = std::pair(unit(flow.from), unit(flow.to));
    if (const auto known = paths_of_units_.find(units); known != paths_of_units_.end()) {
      paths_.back() = paths_[slot(known->second)];
      return;
    }
    paths_of_units_.emplace(units, index);
    std::vector<Terms> leaves(problem_.devices.size()), enters(problem_.devices.size());
    for (int k = 0; k < problem_.device_count(); ++k)
      for (int l = 0; l < problem_.device_count(); ++l) {
        if (!may(flow.from, k) || !may(flow.to, l)) continue;
        const int column = model_.linear.add_column({0, 1, 0, false});
        paths_.back().push_back({k, l, column});
        leaves[slot(k)].push_back({column, 1});
        enters[slot(l)].push_back({column, 1});
      }
    for (int k = 0; k < problem_.device_count(); ++k) {
      leaves[slot(k)].push_back({x(flow.from, k), -1});
      enters[slot(k)].push_back({x(flow.to, k), -1});
      row(0, 0, leaves[slot(k)]);
      row(0, 0, enters[slot(k)]);
    }
  }

  void add_starts() {
    for (int op = 0; op < problem_.op_count(); ++op) {
      double least_tail = never;
      for (int k = 0; k < problem_.device_count(); ++k) least_tail = std::min(least_tail, tail(op, k));
      add_start(windows_.earliest[slot(op)], horizon_ms_ - least_tail);
    }
    for (int flow = 0; flow < flow_count(); ++flow) {
      const auto task = slot(task_of(flow));
      if (moves(flow))
        add_start(windows_.earliest[task], horizon_ms_ - windows_.after[task]);
      else
        model_.start.push_back(-1);
    }
  }
  void add_start(double earliest, double latest) {
    if (!std::isfinite(earliest)) earliest = 0, latest = 0;  // no device: x has no value either
    model_.start.push_back(
        model_.linear.add_column({units(earliest), std::max(units(earliest), units(latest)), 0, false}));
  }

  // The duration of an op or a flow, as a sum over x or u.
  Terms duration(int task) const {
    Terms terms;
    if (task < problem_.op_count()) {
      for (int k = 0; k < problem_.device_count(); ++k)
        if (may(task, k)) terms.push_back({x(task, k), units(ms(task, k))});
    } else {
      const int flow = task - problem_.op_count();
      for (const Path& path : paths_[slot(flow)])
        terms.push_back({path.column, units(problem_.flow_ms(problem_.flows[slot(flow)], path.from, path.to))});
    }
    return terms;
  }

  // The second task starts after the end of the first one.
  void follows(int first, int second) {
    Terms terms{{start(second), 1}, {start(first), -1}};
    append(terms, duration(first), -1);
    row(0, unbounded, terms);
  }

  void add_precedence() {
    for (int flow = 0; flow < flow_count(); ++flow) {
      const Flow& of = problem_.flows[slot(flow)];
      if (moves(flow)) {
        follows(of.from, task_of(flow));
        follows(task_of(flow), of.to);
      } else {
        follows(of.from, of.to);
      }
    }
    for (int op = 0; op < problem_.op_count(); ++op) {
      Terms heads{{start(op), 1}}, tails{{model_.makespan, 1}, {start(op), -1}};
      for (int k = 0; k < problem_.device_count(); ++k) {
        if (!may(op, k)) continue;
        heads.push_back({x(op, k), -units(head(op, k))});
        tails.push_back({x(op, k), -units(tail(op, k))});
      }
      row(0, unbounded, heads);
      row(0, unbounded, tails);
    }
  }

  // start(second) >= end(first) - M (1 - column)
  void add_order(int first, int second, int column) {
    const double big_m = units(horizon_ms_ - windows_.after[slot(first)] - windows_.earliest[slot(second)]);
    if (big_m <= units(slack_)) return;
    Terms terms{{start(second), 1}, {start(first), -1}, {column, -big_m}};
    append(terms, duration(first), -1);
    row(-big_m, unbounded, terms);
  }

  // Columns and rows of a pair; both: what each shared device or link adds up to if both tasks are on it, less one.
  void add_rows_of_pair(int first, int second, bool forward, bool backward, const std::vector<Terms>& both) {
    if (both.empty()) return;
    MilpPair pair{first, second, -1, -1};
    Terms orders;
    const auto add = [&](bool integer) {
      const int column = model_.linear.add_column({0, 1, 0, integer});
      orders.push_back({column, 1});
      return column;
    };
    if (forward) add_order(first, second, pair.before = add(forward && backward));
    if (backward) add_order(second, first, pair.after = add(false));
    for (const Terms& shared : both) {
      Terms terms = orders;
      append(terms, shared, -1);
      row(-1, unbounded, terms);
    }
    model_.pairs.push_back(pair);
  }

  void add_pair_of_ops(int i, int j) {
    bool forward = false, backward = false;
    std::vector<Terms> both;
    for (int k = 0; k < problem_.device_count(); ++k) {
      if (!may(i, k) || !may(j, k)) continue;
      const double end_i = horizon_ms_ - (tail(i, k) - ms(i, k)), end_j = horizon_ms_ - (tail(j, k) - ms(j, k));
      if (end_i <= head(j, k) + slack_ || end_j <= head(i, k) + slack_) continue;  // apart in any case
      forward |= head(i, k) + ms(i, k) <= horizon_ms_ - tail(j, k);
      backward |= head(j, k) + ms(j, k) <= horizon_ms_ - tail(i, k);
      both.push_back(unit(i) == unit(j) ? Terms{{x(i, k), 2}} : Terms{{x(i, k), 1}, {x(j, k), 1}});
    }
    add_rows_of_pair(i, j, forward, backward, both);
  }

  Terms crossing(int flow, int k, bool leaves) const {
    Terms terms;
    for (const Path& path : paths_[slot(flow)])
      if (path.from != path.to && (leaves ? path.from : path.to) == k) terms.push_back({path.column, 1});
    return terms;
  }

  void add_pair_of_flows(int q, int r) {
    const int first = task_of(q), second = task_of(r);
    const double end_q = horizon_ms_ - windows_.after[slot(first)], end_r = horizon_ms_ - windows_.after[slot(second)];
    const double start_q = windows_.earliest[slot(first)], start_r = windows_.earliest[slot(second)];
    if (end_q <= start_r + slack_ || end_r <= start_q + slack_) return;
    std::vector<Terms> both;
    for (const bool leaves : {true, false})
      for (int k = 0; k < problem_.device_count(); ++k) {
        Terms terms = crossing(q, k, leaves);
        const Terms other = crossing(r, k, leaves);
        if (terms.empty() || other.empty()) continue;
        append(terms, other);
        both.push_back(std::move(terms));
      }
    add_rows_of_pair(first, second, true, true, both);
  }

  // Ops that cannot start before one op's head and have at least its tail share the time between, if one of them is on
  // the device: surely if that op is, and otherwise the time before and after is within the bound.
  void add_load(int k) {
    struct Set {
      double bound = 0;
      int op = 0;
    };
    const auto in_set = [&](int op, int of) {
      return may(op, k) && head(op, k) >= head(of, k) && tail(op, k) - ms(op, k) >= tail(of, k) - ms(of, k);
    };
    std::vector<Set> sets;
    for (int of = 0; of < problem_.op_count(); ++of) {
      if (!may(of, k)) continue;
      double bound = head(of, k) + tail(of, k) - ms(of, k);
      for (int op = 0; op < problem_.op_count(); ++op)
        if (in_set(op, of)) bound += ms(op, k);
      if (bound > model_.bound_ms) sets.push_back({bound, of});
    }
    std::stable_sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) { return a.bound > b.bound; });
    sets.resize(std::min(sets.size(), most_load_rows));
    for (const Set& set : sets) {
      Terms terms{{model_.makespan, 1}};
      for (int op = 0; op < problem_.op_count(); ++op)
        if (in_set(op, set.op)) terms.push_back({x(op, k), -units(ms(op, k))});
      const double around = head(set.op, k) + tail(set.op, k) - ms(set.op, k),
                   least = std::min(around, model_.bound_ms);
      terms.push_back({x(set.op, k), -units(around - least)});
      row(units(least), unbounded, terms);
    }
  }

  void add_link_load(int k) {
    for (const bool leaves : {true, false}) {
      Terms terms{{model_.makespan, 1}};
      double head = never, tail = never;
      for (int flow = 0; flow < flow_count(); ++flow) {
        const Terms used = crossing(flow, k, leaves);
        if (used.empty()) continue;
        head = std::min(head, windows_.earliest[slot(task_of(flow))]);
        tail = std::min(tail, windows_.after[slot(task_of(flow))]);
        for (const Path& path : paths_[slot(flow)])
          if (path.from != path.to && (leaves ? path.from : path.to) == k)
            terms.push_back({path.column, -units(problem_.flow_ms(problem_.flows[slot(flow)], path.from, path.to))});
      }
      if (terms.size() > 1) row(units(head + tail), unbounded, terms);
    }
  }

  const Problem& problem_;
  const double horizon_ms_;
  const double slack_;  // what the horizon's own slack leaves open decides no order, in ms
  const Reachability reach_;
  Windows windows_;
  MilpModel model_;
  std::vector<std::vector<Path>> paths_;               // by flow
  std::map<std::pair<int, int>, int> paths_of_units_;  // the first flow between two units
  std::set<std::pair<int, int>> paired_;               // tasks
};

MilpProgram::MilpProgram(const Problem& problem, double horizon_ms)
    : builder_(std::make_unique<Builder>(problem, horizon_ms)) {}
MilpProgram::~MilpProgram() = default;

const MilpModel& MilpProgram::model() const { return builder_->model(); }

bool MilpProgram::add_pair(int first, int second) { return builder_->add_pair(first, second); }

void MilpProgram::tighten(double makespan_ms) {
  LinearModel::Column& makespan = builder_->model().linear.columns[slot(model().makespan)];
  makespan.upper = std::min(makespan.upper, makespan_ms / model().scale * (1 + horizon_slack));
}

double serial_ms(const Problem& problem) {
  double sum = 0;
  for (const Op& op : problem.ops) sum += std::ranges::max(op.ms);
  for (const Flow& flow : problem.flows) {
    double most = 0;
    for (int k = 0; k < problem.device_count(); ++k)
      for (int l = 0; l < problem.device_count(); ++l) most = std::max(most, problem.flow_ms(flow, k, l));
    sum += most;
  }
  return sum;
}

}  // namespace lancet::placement
