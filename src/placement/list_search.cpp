// The search for a placement by moves.
//
// A candidate is a device for each unit and an order of the ops; the timetable of the two is its makespan. It begins
// with the best of the list schedulers, of splits into runs of neighbouring units, and of units packed
// into the devices. A move gives a unit, two units or a run of neighbouring units other devices, shifts a border
// between two devices, or shifts an op in the order. After a change of devices the order is that of the longest chains
// under the new devices, or the old one, whichever is shorter.
//
// Late acceptance (Burke and Bykov, 2017) decides which moves stay: those no worse than the candidate of `history`
// moves ago. It needs no scale of the makespan and no plan for its time. The best candidate is kept. When the
// search has found nothing better for `patience` moves, it gives some units of the best one other devices and begins
// there. Random numbers depend on the seed alone, so a search that ends by its number of moves gives the same answer in
// every run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "lancet/base/random.h"
#include "lancet/placement/solvers.h"

namespace lancet::placement {
namespace {

// Splits into runs of neighbouring units: a dynamic program for each order of the devices: least[k][i] is the shortest
// sum for the first i units on the first k devices, each of which has at least one. A border between two devices is
// passed by all flows between units on both sides of it.
constexpr std::size_t most_permuted = 4;

class Splitter {
 public:
  Splitter(const Problem& problem, const Units& units) : problem_(problem), count_(std::size_t(units.count())) {
    mb_.assign(count_ + 1, 0);
    ms_.assign(problem.devices.size(), mb_);
    for (std::size_t unit = 0; unit < count_; ++unit) add_unit(units, unit);
    crossing_.assign(count_ + 1, {});
    for (const Flow& flow : problem.flows) {
      const int from = units.of[std::size_t(flow.from)], to = units.of[std::size_t(flow.to)];
      for (int border = std::min(from, to) + 1; border <= std::max(from, to); ++border) {
        Crossing& at = crossing_[std::size_t(border)];
        (from < to ? at.mb : at.back_mb) += flow.mb;
        ++(from < to ? at.flows : at.back_flows);
      }
    }
  }

  // The device of each unit, for devices in this order; empty if no split fits.
  std::vector<int> split(const std::vector<int>& devices) const {
    const std::size_t orders = devices.size();
    std::vector<std::vector<double>> least(orders + 1, std::vector<double>(count_ + 1, never));
    std::vector<std::vector<std::size_t>> begin(orders + 1, std::vector<std::size_t>(count_ + 1, 0));
    least[0][0] = 0;
    for (std::size_t k = 0; k < orders; ++k)
      for (std::size_t first = 0; first < count_; ++first) {
        if (least[k][first] == never) continue;
        const double before = least[k][first] + (k > 0 ? border_ms(first, devices[k - 1], devices[k]) : 0);
        for (std::size_t end = first + 1; end <= count_ && fits(first, end, devices[k]); ++end) {
          const auto& ms = ms_[std::size_t(devices[k])];
          const double now = before + ms[end] - ms[first];
          if (now < least[k + 1][end]) least[k + 1][end] = now, begin[k + 1][end] = first;
        }
      }
    std::size_t used = 1;
    for (std::size_t k = 2; k <= orders; ++k)
      if (least[k][count_] < least[used][count_]) used = k;
    if (least[used][count_] == never) return {};
    std::vector<int> device(count_);
    for (std::size_t k = used, end = count_; k > 0; end = begin[k][end], --k)
      std::fill(device.begin() + std::ptrdiff_t(begin[k][end]), device.begin() + std::ptrdiff_t(end), devices[k - 1]);
    return device;
  }

  // The fastest first.
  std::vector<int> by_speed(std::vector<int> devices) const {
    std::stable_sort(devices.begin(), devices.end(),
                     [&](int a, int b) { return ms_[std::size_t(a)].back() < ms_[std::size_t(b)].back(); });
    return devices;
  }

 private:
  struct Crossing {
    double mb = 0, back_mb = 0;
    int flows = 0, back_flows = 0;
  };

  void add_unit(const Units& units, std::size_t unit) {
    mb_[unit + 1] = mb_[unit] + units.mb[unit];
    for (std::size_t k = 0; k < ms_.size(); ++k) {
      double sum = 0;
      for (const int op : units.ops[unit]) sum += problem_.ops[std::size_t(op)].ms[k];
      ms_[k][unit + 1] = ms_[k][unit] + sum;
    }
  }

  bool fits(std::size_t first, std::size_t end, int device) const {
    return mb_[end] - mb_[first] <= problem_.devices[std::size_t(device)].memory_mb;
  }

  double border_ms(std::size_t border, int left, int right) const {
    const Crossing& at = crossing_[border];
    const auto a = std::size_t(left), b = std::size_t(right);
    return at.mb * problem_.ms_per_mb[a][b] + at.flows * problem_.latency_ms[a][b] +
           at.back_mb * problem_.ms_per_mb[b][a] + at.back_flows * problem_.latency_ms[b][a];
  }

  const Problem& problem_;
  const std::size_t count_;
  std::vector<double> mb_;               // of the first units
  std::vector<std::vector<double>> ms_;  // by device, of the first units
  std::vector<Crossing> crossing_;       // by border: before that unit
};

}  // namespace

std::vector<std::vector<int>> contiguous_splits(const Problem& problem, const Units& units) {
  const Splitter splitter(problem, units);
  std::vector<std::vector<int>> splits;
  const auto add = [&](const std::vector<int>& devices) {
    if (std::vector<int> split = splitter.split(devices); !split.empty()) splits.push_back(std::move(split));
  };
  std::vector<int> devices(problem.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  if (devices.size() > most_permuted) {
    add(splitter.by_speed(std::move(devices)));
    return splits;
  }
  do add(devices);
  while (std::next_permutation(devices.begin(), devices.end()));
  return splits;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t history = 64;

struct Candidate {
  std::vector<int> device;  // by unit
  std::vector<int> order;   // of the ops
  double makespan = never;
};

Clock::duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class ListSearch {
 public:
  ListSearch(const Problem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        units_(units_of(problem)),
        flows_(flows_of_ops(problem)),
        table_(problem),
        random_(options.seed, stream_of("placement")),
        device_of_op_(problem.ops.size()),
        end_(Clock::now() + of_seconds(options.seconds)) {}

  Result<Placement> operator()() {
    for (const Solver& solver : list_solvers())
      if (const auto placement = solver.solve(problem_); placement.ok()) start_from(*placement);
    start_from_packings();
    end_ = std::max(end_, Clock::now() + of_seconds(options_.seconds / 2));
    if (best_.makespan == never)
      return config_error(
          fmt::format("search: expected a placement of {} ops that fits the memory of {} devices, found none",
                      problem_.op_count(), problem_.device_count()));
    if (problem_.device_count() > 1) improve();
    if (start_ && start_->makespan_ms <= best_.makespan) return *std::move(start_);
    spread(best_.device);
    return timetable(problem_, device_of_op_, best_.order);
  }

 private:
  int below(std::int64_t bound) { return int(random_.below(drawn_++, std::uint64_t(bound))); }
  // Uniform in the logarithm, from 1 to `most`.
  int length_up_to(int most) {
    return int(std::exp(double(random_.uniform(drawn_++)) * std::log(double(most) + 0.99)));
  }

  void spread(const std::vector<int>& device_of_unit) {
    for (std::size_t op = 0; op < device_of_op_.size(); ++op)
      device_of_op_[op] = device_of_unit[std::size_t(units_.of[op])];
  }

  // The makespan, or `never` once it is sure to exceed the limit: an op's end, and the longest chain behind it.
  double makespan_of(const std::vector<int>& order, const std::vector<double>& ranks, double limit) {
    table_.clear();
    double latest = 0;
    for (const int op : order) {
      const double end = table_.run(op, device_of_op_[std::size_t(op)]);
      if (table_.start(op) + ranks[std::size_t(op)] > limit * (1 + 1e-12)) return never;
      latest = std::max(latest, end);
    }
    return latest <= limit ? latest : never;
  }

  // Sets the order and the makespan of a candidate whose devices were changed; `never` if that exceeds the limit.
  void evaluate(Candidate& candidate, double limit) {
    spread(candidate.device);
    const std::vector<double> ranks = upward_ranks(problem_, flows_, device_of_op_);
    candidate.makespan = never;
    if (std::ranges::max(ranks) > limit * (1 + 1e-12)) return;
    if (!candidate.order.empty()) candidate.makespan = makespan_of(candidate.order, ranks, limit);
    std::vector<int> by_chains = order_by(ranks);
    const double now = makespan_of(by_chains, ranks, std::min(limit, candidate.makespan));
    if (now < candidate.makespan || candidate.order.empty()) {
      candidate.makespan = now;
      candidate.order = std::move(by_chains);
    }
  }

  bool fits(const std::vector<int>& device_of_unit) {
    left_mb_.clear();
    for (const Device& device : problem_.devices) left_mb_.push_back(device.memory_mb);
    for (int unit = 0; unit < units_.count(); ++unit) {
      const int device = device_of_unit[std::size_t(unit)];
      if (device < 0 || (left_mb_[std::size_t(device)] -= units_.mb[std::size_t(unit)]) < 0) return false;
    }
    return true;
  }

  void keep_if_best(const Candidate& candidate) {
    if (candidate.makespan < best_.makespan) best_ = candidate, best_at_ = move_;
  }

  // A candidate orders ops only, and may be longer than a placement whose flows have an order of their own.
  void start_from(const Placement& placement) {
    if (!start_ || placement.makespan_ms < start_->makespan_ms) start_ = placement;
    Candidate candidate;
    for (const std::vector<int>& ops : units_.ops)
      candidate.device.push_back(placement.device[std::size_t(ops.front())]);
    for (const int task : order_of(problem_, placement))
      if (task < problem_.op_count()) candidate.order.push_back(task);
    evaluate(candidate, never);
    keep_if_best(candidate);
  }

  // Units in the order of their first ops into one device after the other, each until its memory is full; nothing if
  // units are left over.
  std::vector<int> packed(const std::vector<int>& order) const {
    std::vector<int> device_of_unit(std::size_t(units_.count()), -1);
    std::vector<double> left;
    for (const Device& device : problem_.devices) left.push_back(device.memory_mb);
    for (const int unit : order)
      for (int device = 0; device < problem_.device_count(); ++device) {
        if (units_.mb[std::size_t(unit)] > left[std::size_t(device)]) continue;
        left[std::size_t(device)] -= units_.mb[std::size_t(unit)];
        device_of_unit[std::size_t(unit)] = device;
        break;
      }
    return device_of_unit;
  }

  void start_from_devices(const std::vector<int>& device_of_unit) {
    if (!fits(device_of_unit)) return;
    Candidate candidate{.device = device_of_unit, .order = {}};
    evaluate(candidate, never);
    keep_if_best(candidate);
  }

  void start_from_packings() {
    std::vector<int> order(static_cast<std::size_t>(units_.count()));
    std::iota(order.begin(), order.end(), 0);
    for (const std::vector<int>& split : contiguous_splits(problem_, units_)) start_from_devices(split);
    std::vector<int> largest_first = order;  // which fits where others do not
    std::stable_sort(largest_first.begin(), largest_first.end(),
                     [&](int a, int b) { return units_.mb[std::size_t(a)] > units_.mb[std::size_t(b)]; });
    start_from_devices(packed(order));
    start_from_devices(packed(largest_first));
  }

  void improve() {
    Candidate current = best_;
    std::vector<double> late(history, current.makespan);
    const std::int64_t patience = 100 + 10 * units_.count();
    const double proven = lower_bound_ms(problem_) * (1 + 1e-9);
    for (move_ = best_at_ = 0; move_ < options_.moves && best_.makespan > proven && Clock::now() < end_; ++move_) {
      if (move_ - best_at_ > patience) {
        current = kicked();
        std::fill(late.begin(), late.end(), current.makespan);
        best_at_ = move_;
      }
      double& before = late[std::size_t(move_) % history];
      const double limit = std::max(before, current.makespan);
      Candidate next = current;
      if (changed(next, limit) && next.makespan <= limit) {
        current = std::move(next);
        keep_if_best(current);
      }
      before = current.makespan;
    }
  }

  Candidate kicked() {
    Candidate candidate = best_;
    const int units = length_up_to(units_.count());
    for (int i = 0; i < units; ++i) move_unit(candidate.device);
    if (!fits(candidate.device)) return best_;
    evaluate(candidate, never);
    return candidate.makespan < never ? candidate : best_;
  }

  // Changes the candidate by one move and evaluates it; false if there is no such move or it does not fit.
  bool changed(Candidate& candidate, double limit) {
    const int kind = below(8);
    if (kind < 2) return shift_in_order(candidate, limit);
    if (kind < 4) {
      move_unit(candidate.device);
    } else if (kind < 5) {
      swap_units(candidate.device);
    } else if (kind < 6) {
      move_run(candidate.device);
    } else if (!shift_border(candidate.device)) {
      return false;
    }
    if (!fits(candidate.device)) return false;
    evaluate(candidate, limit);
    return true;
  }

  void move_unit(std::vector<int>& device) {
    int& of = device[std::size_t(below(units_.count()))];
    of = (of + 1 + below(problem_.device_count() - 1)) % problem_.device_count();
  }

  void swap_units(std::vector<int>& device) {
    std::swap(device[std::size_t(below(units_.count()))], device[std::size_t(below(units_.count()))]);
  }

  void move_run(std::vector<int>& device) {
    const int first = below(units_.count()), length = length_up_to(units_.count()), to = below(problem_.device_count());
    for (int unit = first; unit < std::min(first + length, units_.count()); ++unit) device[std::size_t(unit)] = to;
  }

  bool shift_border(std::vector<int>& device) {
    borders_.clear();
    for (int unit = 0; unit + 1 < units_.count(); ++unit)
      if (device[std::size_t(unit)] != device[std::size_t(unit) + 1]) borders_.push_back(unit);
    if (borders_.empty()) return false;
    const int border = borders_[std::size_t(below(std::int64_t(borders_.size())))];
    const int length = length_up_to(16), left = device[std::size_t(border)], right = device[std::size_t(border) + 1];
    if (below(2) == 0)
      for (int unit = border; unit > std::max(border - length, -1); --unit) device[std::size_t(unit)] = right;
    else
      for (int unit = border + 1; unit <= std::min(border + length, units_.count() - 1); ++unit)
        device[std::size_t(unit)] = left;
    return true;
  }

  // Shifts an op to another place between its last predecessor and its first successor.
  bool shift_in_order(Candidate& candidate, double limit) {
    std::vector<int>& order = candidate.order;
    position_.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) position_[std::size_t(order[i])] = int(i);
    const int op = below(std::int64_t(order.size()));
    int first = 0, last = int(order.size()) - 1;
    for (const int flow : flows_.in[std::size_t(op)])
      first = std::max(first, position_[std::size_t(problem_.flows[std::size_t(flow)].from)] + 1);
    for (const int flow : flows_.out[std::size_t(op)])
      last = std::min(last, position_[std::size_t(problem_.flows[std::size_t(flow)].to)] - 1);
    if (first == last) return false;
    const int from = position_[std::size_t(op)], to = first + below(last - first + 1);
    const auto at = [&](int index) { return order.begin() + index; };
    if (to < from) std::rotate(at(to), at(from), at(from + 1));
    if (to > from) std::rotate(at(from), at(from + 1), at(to + 1));
    spread(candidate.device);
    candidate.makespan = makespan_of(order, upward_ranks(problem_, flows_, device_of_op_), limit);
    return to != from;
  }

  const Problem& problem_;
  const SearchOptions options_;
  const Units units_;
  const FlowsOfOps flows_;
  Timetable table_;
  const Philox random_;
  std::uint64_t drawn_ = 0;
  std::vector<int> device_of_op_, borders_, position_;
  std::vector<double> left_mb_;
  Clock::time_point end_;
  std::optional<Placement> start_;  // the shortest of the list schedulers
  Candidate best_;
  std::int64_t move_ = 0, best_at_ = 0;
};

constexpr Solver solver_table[] = {
    {"even", "equal shares of the ops, in their order", even},
    {"heft", "Heterogeneous Earliest Finish Time", heft},
    {"etf", "Earliest Task First", etf},
    {"msct", "Small Communication Time with memory, as Baechi's", msct},
    {"getf", "Generalized Earliest Time First", getf},
};

}  // namespace

Result<Placement> list_search(const Problem& problem, const SearchOptions& options) {
  return ListSearch(problem, options)();
}

std::span<const Solver> list_solvers() { return solver_table; }

}  // namespace lancet::placement
