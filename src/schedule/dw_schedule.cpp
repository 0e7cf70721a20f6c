// The dW schedule of the paper's section 4, for steps whose instructions are not split. Labels (assign_dw.h) find the
// computation that is independent of some all-to-all, mostly weight gradients; the greedy assigns these instructions to
// all-to-alls within their slack; reordered() puts each right after its all-to-all. overlap.h says where list
// scheduling places weight gradients instead.
#include <algorithm>
#include <numeric>

#include "assign_dw.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "orders.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Role;
using ir::Stream;

class DwSchedule {
 public:
  DwSchedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Interference& interference)
      : program_(program),
        op_costs_(op_costs),
        interference_(interference),
        dependencies_(ir::dependencies(program)),
        dependents_(dependencies_.size()) {
    for (std::size_t i = 0; i < dependencies_.size(); ++i)
      for (InstructionId before : dependencies_[i]) dependents_[before.index()].push_back(id_of(i));
    find_all_to_alls();
    find_movable();
  }

  // Per movable instruction the all-to-all that it is assigned to, or -1.
  std::vector<int> assigned() const { return assign_greedily(problem_); }

  Order order(const std::vector<int>& assigned) const {
    std::vector<Order> after(dependencies_.size());
    for (std::size_t m = 0; m < movable_.size(); ++m)
      if (assigned[m] >= 0) after[all_to_alls_[std::size_t(assigned[m])].index()].push_back(movable_[m]);
    return reordered(program_, dependencies_, after);
  }

  DwReport report(const std::vector<int>& assigned) const {
    return {std::accumulate(problem_.slack.begin(), problem_.slack.end(), 0.0), covered(problem_, assigned),
            int(movable_.size())};
  }

 private:
  // Finds the all-to-alls that can hide computation, and their slack: an all-to-all lasts longer beside computation,
  // and moving its bytes takes core time.
  void find_all_to_alls() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const ir::Instruction& instruction = program_.instructions[i];
      if (ops::kind(instruction) != ops::Kind::all_to_all) continue;
      const double slack = op_costs_[i].ms / interference_.network_beside_compute - op_costs_[i].core_ms;
      if (slack <= 0) continue;
      all_to_alls_.push_back(id_of(i));
      problem_.slack.push_back(slack);
    }
  }

  // Finds the computation that is independent of some all-to-all: dWs, updates that wait for no all-reduce, what is
  // recomputed, and computation beside an MoE layer, such as the gate's gradient. Of the forward pass it takes only
  // instructions that no computation needs: the parts of a partitioned range are independent of each other's
  // all-to-alls too, but the partition decides their order.
  void find_movable() {
    if (all_to_alls_.empty()) return;
    const Labels labels(dependencies_, all_to_alls_);
    std::vector<bool> reduced(dependencies_.size());  // waits for an all-reduce, directly or not
    movable_at_.assign(dependencies_.size(), -1);
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      const ir::Instruction& instruction = program_.instructions[i];
      reduced[i] = reduces(id_of(i)) ||
                   std::ranges::any_of(dependencies_[i], [&](InstructionId before) { return reduced[before.index()]; });
      if (instruction.stream != Stream::compute || op_costs_[i].ms <= 0 || reduced[i]) continue;
      if (instruction.role == Role::forward && !only_reduced(id_of(i))) continue;
      const auto later = std::lower_bound(all_to_alls_.begin(), all_to_alls_.end(), id_of(i));
      Movable movable;
      movable.ms = op_costs_[i].ms;
      // What is recomputed moves no further than under the all-to-all before it: it would keep the memory that it is to
      // free.
      for (auto at = all_to_alls_.begin(); at != all_to_alls_.end(); ++at)
        movable.allowed.push_back(labels.overlappable(id_of(i), std::size_t(at - all_to_alls_.begin())) &&
                                  (instruction.role != Role::recompute || at + 1 == later));
      if (std::find(movable.allowed.begin(), movable.allowed.end(), true) == movable.allowed.end()) continue;
      movable.default_position = 2 * int(later - all_to_alls_.begin()) - 1;
      movable_at_[i] = int(movable_.size());
      movable_.push_back(id_of(i));
      problem_.items.push_back(std::move(movable));
    }
    for (std::size_t m = 0; m < movable_.size(); ++m) tie_to_neighbours(m);
  }

  // True if only all-reduces depend on it, as on the auxiliary loss.
  bool only_reduced(InstructionId id) const {
    return std::ranges::all_of(dependents_[id.index()], [&](InstructionId after) { return reduces(after); });
  }
  bool reduces(InstructionId id) const { return program_.instructions[id.index()].stream == Stream::reduce; }

  bool is_view(InstructionId id) const {
    return program_.instructions[id.index()].stream == Stream::compute && op_costs_[id.index()].ms <= 0;
  }

  // Dependencies on other movable items become ordering constraints; dependencies on fixed instructions restrict the
  // allowed all-to-alls. Views move with their source.
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
      if (movable_at_[after.index()] >= 0 || reduces(after)) continue;
      if (is_view(after))
        open.insert(open.end(), dependents_[after.index()].begin(), dependents_[after.index()].end());
      else
        for (std::size_t a = all_to_alls_.size(); a-- > 0 && after < all_to_alls_[a];) item.allowed[a] = false;
    }
  }

  const ir::Program& program_;
  std::span<const cost::OpCost> op_costs_;
  cost::Interference interference_;
  Dependencies dependencies_, dependents_;
  std::vector<InstructionId> all_to_alls_, movable_;
  std::vector<int> movable_at_;  // per instruction, its number among the movable, or -1
  Assignment problem_;
};

}  // namespace

ir::Program dw_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs,
                        const cost::Interference& interference, DwReport* report) {
  const DwSchedule schedule(program, op_costs, interference);
  const std::vector<int> assigned = schedule.assigned();
  if (report) *report = schedule.report(assigned);
  return permuted(program, schedule.order(assigned));
}

}  // namespace lancet::schedule
