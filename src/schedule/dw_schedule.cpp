#include <algorithm>
#include <limits>

#include "assign_dw.h"
#include "labels.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/dw_schedule.h"
#include "reorder.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Stream;
using ir::Role;

// How many all-to-alls past its home a dW may go that an all-reduce waits for. Each is tried: far hides more
// all-to-all, near lets the all-reduces start earlier.
constexpr int any_distance = std::numeric_limits<int>::max() / 4;
constexpr int distances[] = {any_distance, 8, 4, 2, 1, 0};

class DwSchedule {
 public:
  DwSchedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Interference& interference)
      : program_(program),
        op_costs_(op_costs.begin(), op_costs.end()),
        interference_(interference),
        dependencies_(ir::dependencies(program)),
        dependents_(dependencies_.size()) {
    for (std::size_t i = 0; i < dependencies_.size(); ++i)
      for (InstructionId before : dependencies_[i]) dependents_[before.index()].push_back(id_of(i));
    find_all_to_alls();
    find_movable();
  }

  int movable() const { return int(movable_.size()); }

  const Dependencies& dependencies() const { return dependencies_; }
  const std::vector<cost::OpCost>& op_costs() const { return op_costs_; }

  // Per movable the all-to-all it lies under.
  std::vector<int> assign(int distance) const {
    Assignment problem = problem_;
    for (std::size_t m = 0; m < movable_.size(); ++m) {
      if (!reduced_next(movable_[m])) continue;
      auto& allowed = problem.items[m].allowed;
      const int next = (problem.items[m].home + 1) / 2;  // the first all-to-all behind its home
      for (std::size_t a = 0; a < allowed.size(); ++a) allowed[a] = allowed[a] && int(a) < next + distance;
    }
    return schedule::assign(problem);
  }

  Order order(const std::vector<int>& under) const {
    std::vector<Order> behind(dependencies_.size());
    for (std::size_t m = 0; m < movable_.size(); ++m)
      if (under[m] >= 0) behind[all_to_alls_[std::size_t(under[m])].index()].push_back(movable_[m]);
    return reordered(program_, dependencies_, behind);
  }

  // What lies where, with the places of the instructions in the new order.
  void report(const std::vector<int>& under, const Order& order, DwReport& report) const {
    std::vector<InstructionId> place(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) place[order[i].index()] = id_of(i);
    for (std::size_t a = 0; a < all_to_alls_.size(); ++a) {
      DwCover cover{place[all_to_alls_[a].index()], problem_.room[a], 0, {}};
      for (std::size_t m = 0; m < movable_.size(); ++m) {
        if (under[m] != int(a)) continue;
        cover.under.push_back(place[movable_[m].index()]);
        cover.covered_ms += op_costs_[movable_[m].index()].ms;
      }
      cover.covered_ms = std::min(cover.covered_ms, cover.slack_ms);
      report.slack_ms += cover.slack_ms;
      report.covered_ms += cover.covered_ms;
      report.covers.push_back(std::move(cover));
    }
  }

 private:
  // Those that take time, and how much computation each hides: it lasts longer beside computation, and moving its bytes
  // takes its share of the cores.
  void find_all_to_alls() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const ir::Instruction& instruction = program_.instructions[i];
      if (ops::kind(instruction) != ops::Kind::all_to_all) continue;
      const double room = op_costs_[i].ms / interference_.network_beside_compute - op_costs_[i].core_ms;
      if (room <= 0) continue;
      all_to_alls_.push_back(id_of(i));
      problem_.room.push_back(room);
    }
  }

  // Computation that no path joins to some all-to-all: dWs, updates that wait for no all-reduce, and of the rest what
  // lies beside an MoE layer: the gate's gradient; in the forward pass only what no computation needs, since parts of a
  // partitioned range lie beside each other's all-to-alls, and their order is the partition's.
  void find_movable() {
    if (all_to_alls_.empty()) return;
    const Labels labels(dependencies_, all_to_alls_);
    std::vector<bool> reduced(dependencies_.size());  // waits for an all-reduce, directly or not
    movable_at_.assign(dependencies_.size(), -1);
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      const ir::Instruction& instruction = program_.instructions[i];
      reduced[i] = instruction.stream == Stream::reduce ||
                   std::any_of(dependencies_[i].begin(), dependencies_[i].end(),
                               [&](InstructionId before) { return reduced[before.index()]; });
      if (instruction.stream != Stream::compute || op_costs_[i].ms <= 0 || reduced[i]) continue;
      if (instruction.role == Role::forward && !only_reduced(id_of(i))) continue;
      Movable movable;
      movable.ms = op_costs_[i].ms;
      for (std::size_t a = 0; a < all_to_alls_.size(); ++a) movable.allowed.push_back(labels.overlappable(id_of(i), a));
      if (std::find(movable.allowed.begin(), movable.allowed.end(), true) == movable.allowed.end()) continue;
      const auto later = std::lower_bound(all_to_alls_.begin(), all_to_alls_.end(), id_of(i));
      movable.home = 2 * int(later - all_to_alls_.begin()) - 1;
      movable_at_[i] = int(movable_.size());
      movable_.push_back(id_of(i));
      problem_.items.push_back(std::move(movable));
    }
    for (std::size_t m = 0; m < movable_.size(); ++m) tie_to_neighbours(m);
  }

  // Nothing but all-reduces depends on it: the auxiliary loss.
  bool only_reduced(InstructionId id) const {
    const auto& next = dependents_[id.index()];
    return std::all_of(next.begin(), next.end(),
                       [&](InstructionId after) { return program_.instructions[after.index()].stream == Stream::reduce; });
  }

  bool is_view(InstructionId id) const {
    return program_.instructions[id.index()].stream == Stream::compute && op_costs_[id.index()].ms <= 0;
  }

  // Other movables come before it as they must; what stays where it is bounds where it may go. Views go along.
  void tie_to_neighbours(std::size_t m) {
    Movable& item = problem_.items[m];
    std::vector<InstructionId> open = dependencies_[movable_[m].index()];
    while (!open.empty()) {
      const InstructionId before = open.back();
      open.pop_back();
      if (const int other = movable_at_[before.index()]; other >= 0)
        item.before.push_back(other);
      else if (is_view(before))
        open.insert(open.end(), dependencies_[before.index()].begin(), dependencies_[before.index()].end());
      else
        for (std::size_t a = 0; a < all_to_alls_.size() && all_to_alls_[a] < before; ++a) item.allowed[a] = false;
    }
    open = dependents_[movable_[m].index()];
    while (!open.empty()) {
      const InstructionId after = open.back();
      open.pop_back();
      if (movable_at_[after.index()] >= 0 || program_.instructions[after.index()].stream == Stream::reduce) continue;
      if (is_view(after))
        open.insert(open.end(), dependents_[after.index()].begin(), dependents_[after.index()].end());
      else
        for (std::size_t a = all_to_alls_.size(); a-- > 0 && after < all_to_alls_[a];) item.allowed[a] = false;
    }
  }

  bool reduced_next(InstructionId id) const {
    const auto& next = dependents_[id.index()];
    return program_.instructions[id.index()].role == Role::dw &&
           std::any_of(next.begin(), next.end(),
                       [&](InstructionId after) { return program_.instructions[after.index()].stream == Stream::reduce; });
  }

  const ir::Program& program_;
  std::vector<cost::OpCost> op_costs_;
  cost::Interference interference_;
  Dependencies dependencies_, dependents_;
  std::vector<InstructionId> all_to_alls_, movable_;
  std::vector<int> movable_at_;  // per instruction, its number among the movable, or -1
  Assignment problem_;
};

}  // namespace

ir::Program dw_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs,
                        const cost::Interference& interference, double launch_ms, DwReport* report) {
  const DwSchedule schedule(program, op_costs, interference);
  const double before_ms = simulate(program, schedule.dependencies(), op_costs, interference, launch_ms).makespan;
  DwReport made{.before_ms = before_ms, .after_ms = before_ms, .movable = schedule.movable()};
  ir::Program best = program;
  for (int distance : distances) {
    if (schedule.movable() == 0) break;
    const std::vector<int> under = schedule.assign(distance);
    const Order order = schedule.order(under);
    ir::Program candidate = permuted(program, order);
    const double makespan =
        simulate(candidate, ir::dependencies(candidate), permuted(schedule.op_costs(), order), interference, launch_ms)
            .makespan;
    if (makespan >= made.after_ms * (1 - 1e-9)) continue;
    made = {.before_ms = before_ms, .after_ms = makespan, .movable = schedule.movable()};
    schedule.report(under, order, made);
    best = std::move(candidate);
  }
  if (report) *report = std::move(made);
  return best;
}

}  // namespace lancet::schedule
