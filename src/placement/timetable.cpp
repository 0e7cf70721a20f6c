#include "lancet/placement/timetable.h"

#include <algorithm>
#include <numeric>

#include "lancet/base/check.h"

namespace lancet::placement {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool is_before(const Interval& a, const Interval& b) {
  return a.start < b.start || (a.start == b.start && a.end < b.end);
}

}  // namespace

FlowsOfOps flows_of_ops(const Problem& problem) {
  FlowsOfOps flows{std::vector<std::vector<int>>(problem.ops.size()),
                   std::vector<std::vector<int>>(problem.ops.size())};
  for (std::size_t i = 0; i < problem.flows.size(); ++i) {
    flows.in[at(problem.flows[i].to)].push_back(int(i));
    flows.out[at(problem.flows[i].from)].push_back(int(i));
  }
  return flows;
}

Units units_of(const Problem& problem) {
  Units units;
  std::vector<int> unit_of_group;
  for (int op = 0; op < problem.op_count(); ++op) {
    const int group = problem.ops[at(op)].group;
    if (group >= int(unit_of_group.size())) unit_of_group.resize(at(group) + 1, -1);
    int unit = group >= 0 ? unit_of_group[at(group)] : -1;
    if (unit < 0) {
      unit = units.count();
      units.ops.emplace_back();
      units.mb.push_back(0);
      if (group >= 0) unit_of_group[at(group)] = unit;
    }
    units.of.push_back(unit);
    units.ops[at(unit)].push_back(op);
    units.mb[at(unit)] += problem.ops[at(op)].mb;
  }
  return units;
}

double Timeline::earliest(double from, double length) const {
  if (busy_.empty() || busy_.back().end <= from) return from;
  auto next = std::lower_bound(busy_.begin(), busy_.end(), from,
                               [](const Interval& interval, double time) { return interval.end <= time; });
  double start = from;
  for (; next != busy_.end(); ++next) {
    if (start + length <= next->start) return start;
    start = std::max(start, next->end);
  }
  return start;
}

void Timeline::take(Interval interval) {
  if (busy_.empty() || is_before(busy_.back(), interval)) return busy_.push_back(interval);
  busy_.insert(std::upper_bound(busy_.begin(), busy_.end(), interval, is_before), interval);
}

void Timeline::release(Interval interval) {
  const auto found = std::lower_bound(busy_.begin(), busy_.end(), interval, is_before);
  LANCET_CHECK(found != busy_.end() && found->start == interval.start && found->end == interval.end,
               "an interval of a timeline was not taken");
  busy_.erase(found);
}

Timetable::Timetable(const Problem& problem)
    : problem_(problem),
      flows_(flows_of_ops(problem)),
      devices_(problem.devices.size()),
      up_(problem.devices.size()),
      down_(problem.devices.size()) {
  clear();
}

void Timetable::clear() {
  for (auto* timelines : {&devices_, &up_, &down_})
    for (Timeline& timeline : *timelines) timeline.clear();
  flow_ran_.assign(problem_.flows.size(), false);
  answer_.device.assign(problem_.ops.size(), -1);
  answer_.ops.assign(problem_.ops.size(), {});
  answer_.flows.assign(problem_.flows.size(), {});
  log_.clear();
  flow_log_.clear();
}

// Both links must be free for the whole flow.
Interval Timetable::place_flow(int flow, int to_device) {
  const Flow& of = problem_.flows[at(flow)];
  const int from_device = device(of.from);
  const double length = problem_.flow_ms(of, from_device, to_device), ready = end(of.from);
  if (from_device == to_device) return {ready, ready};
  double start = ready;
  for (;;) {
    const double up = up_[at(from_device)].earliest(start, length);
    const double both = down_[at(to_device)].earliest(up, length);
    start = both;
    if (both == up) break;
  }
  const Interval interval{start, start + length};
  up_[at(from_device)].take(interval);
  down_[at(to_device)].take(interval);
  return interval;
}

void Timetable::release_flow(int flow, int to_device) {
  const int from_device = device(problem_.flows[at(flow)].from);
  if (from_device != to_device) {
    up_[at(from_device)].release(answer_.flows[at(flow)]);
    down_[at(to_device)].release(answer_.flows[at(flow)]);
  }
  answer_.flows[at(flow)] = {};
  flow_ran_[at(flow)] = false;
}

double Timetable::run_flow(int flow, int to_device) {
  LANCET_CHECK(has_run(problem_.flows[at(flow)].from) && !flow_ran_[at(flow)], "flow {} runs before its maker or twice",
               flow);
  const Interval interval = place_flow(flow, to_device);
  answer_.flows[at(flow)] = interval;
  flow_ran_[at(flow)] = true;
  return interval.end;
}

double Timetable::run(int op, int on) {
  const double length = problem_.ops[at(op)].ms[at(on)];
  const std::size_t flows_before = flow_log_.size();
  entering_.clear();
  double ready = 0;
  for (const int flow : flows_.in[at(op)]) {
    const int maker = problem_.flows[at(flow)].from;
    LANCET_CHECK(has_run(maker), "op {} runs before its predecessor {}", op, maker);
    if (flow_ran_[at(flow)])
      ready = std::max(ready, answer_.flows[at(flow)].end);
    else
      entering_.push_back(flow);
  }
  std::stable_sort(entering_.begin(), entering_.end(),
                   [&](int a, int b) { return end(problem_.flows[at(a)].from) < end(problem_.flows[at(b)].from); });
  for (const int flow : entering_) {
    flow_log_.push_back(flow);
    ready = std::max(ready, run_flow(flow, on));
  }
  const double start = devices_[at(on)].earliest(ready, length);
  answer_.ops[at(op)] = {start, start + length};
  answer_.device[at(op)] = on;
  devices_[at(on)].take(answer_.ops[at(op)]);
  log_.push_back({op, flows_before});
  return start + length;
}

void Timetable::undo() {
  LANCET_CHECK(!log_.empty(), "no op has run");
  const Step step = log_.back();
  log_.pop_back();
  const int on = device(step.op);
  devices_[at(on)].release(answer_.ops[at(step.op)]);
  for (; flow_log_.size() > step.flows; flow_log_.pop_back()) release_flow(flow_log_.back(), on);
  answer_.ops[at(step.op)] = {};
  answer_.device[at(step.op)] = -1;
}

double Timetable::start_on(int op, int device) {
  run(op, device);
  const double found = start(op);
  undo();
  return found;
}

double Timetable::makespan() const {
  double latest = 0;
  for (const Step& step : log_) latest = std::max(latest, end(step.op));
  return latest;
}

// Flows within a device have no interval.
Placement Timetable::placement() const {
  Placement placement = answer_;
  for (std::size_t i = 0; i < problem_.flows.size(); ++i) {
    const Flow& flow = problem_.flows[i];
    if (device(flow.from) == device(flow.to)) placement.flows[i] = {end(flow.from), end(flow.from)};
  }
  for (int op = 0; op < problem_.op_count(); ++op) LANCET_CHECK(has_run(op), "op {} has no place", op);
  placement.makespan_ms = makespan();
  return placement;
}

Placement timetable(const Problem& problem, const std::vector<int>& device, const std::vector<int>& order) {
  Timetable table(problem);
  for (const int task : order) {
    const bool is_op = task < problem.op_count();
    const int flow = task - problem.op_count();
    if (is_op)
      table.run(task, device[at(task)]);
    else
      table.run_flow(flow, device[at(problem.flows[at(flow)].to)]);
  }
  return table.placement();
}

std::vector<int> order_of(const Problem& problem, const Placement& placement) {
  const int ops = problem.op_count();
  std::vector<int> order;
  for (int op = 0; op < ops; ++op) order.push_back(op);
  for (int flow = 0; flow < int(problem.flows.size()); ++flow) {
    const Flow& of = problem.flows[at(flow)];
    if (placement.device[at(of.from)] != placement.device[at(of.to)]) order.push_back(ops + flow);
  }
  const auto interval = [&](int task) {
    return task < ops ? placement.ops[at(task)] : placement.flows[at(task - ops)];
  };
  // Among equal starts: by the end, then a flow between its maker and its reader.
  const auto position = [&](int task) {
    return task < ops ? std::pair(task, 0) : std::pair(problem.flows[at(task - ops)].from, 1);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const Interval of_a = interval(a), of_b = interval(b);
    if (of_a.start != of_b.start || of_a.end != of_b.end) return is_before(of_a, of_b);
    return position(a) < position(b);
  });
  return order;
}

double mean_ms(const Op& op) { return std::accumulate(op.ms.begin(), op.ms.end(), 0.0) / double(op.ms.size()); }

double mean_flow_ms(const Problem& problem, const Flow& flow) {
  double sum = 0;
  int pairs = 0;
  for (int from = 0; from < problem.device_count(); ++from)
    for (int to = 0; to < problem.device_count(); ++to)
      if (from != to) sum += problem.flow_ms(flow, from, to), ++pairs;
  return pairs > 0 ? sum / pairs : 0;
}

std::vector<double> upward_ranks(const Problem& problem, const FlowsOfOps& flows, const std::vector<int>& device) {
  std::vector<double> ranks(problem.ops.size(), 0);
  const bool means = device.empty();
  for (int op = problem.op_count() - 1; op >= 0; --op) {
    double longest = 0;
    for (const int index : flows.out[at(op)]) {
      const Flow& flow = problem.flows[at(index)];
      const double ms =
          means ? mean_flow_ms(problem, flow) : problem.flow_ms(flow, device[at(op)], device[at(flow.to)]);
      longest = std::max(longest, ms + ranks[at(flow.to)]);
    }
    ranks[at(op)] = longest + (means ? mean_ms(problem.ops[at(op)]) : problem.ops[at(op)].ms[at(device[at(op)])]);
  }
  return ranks;
}

std::vector<int> order_by(const std::vector<double>& ranks) {
  std::vector<int> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return ranks[at(a)] > ranks[at(b)]; });
  return order;
}

}  // namespace lancet::placement
