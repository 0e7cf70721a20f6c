// The greedy goes through the all-to-alls in launch order. It fills each one: it repeatedly assigns the item whose time
// is closest to the remaining slack. An item is assigned only where that is allowed, and positions respect the order of
// dependent items. A local search after it, which moved single items and swapped pairs, made no plan of `lancet`
// shorter and those of `dw` by 0.3% at most.
#include "assign_dw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lancet::schedule {
namespace {

constexpr int nowhere = -1;

class Greedy {
 public:
  explicit Greedy(const Assignment& problem)
      : items_(problem.items), assigned_(items_.size(), nowhere), after_(items_.size()) {
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (int before : items_[i].before) after_[std::size_t(before)].push_back(int(i));
    double total = 0;
    for (double slack : problem.slack) total += slack;
    for (std::size_t a = 0; a < problem.slack.size(); ++a) fill(int(a), problem.slack[a], 1e-9 * total);
  }
  std::vector<int> assigned() && { return std::move(assigned_); }

 private:
  int position(int item) const {
    const int a = assigned_[std::size_t(item)];
    return a == nowhere ? items_[std::size_t(item)].default_position : 2 * a;
  }

  // True if the item is allowed there, and is neither before an item that it needs nor after one that needs it.
  bool fits(int item, int a) const {
    const Movable& movable = items_[std::size_t(item)];
    return movable.allowed[std::size_t(a)] &&
           std::ranges::all_of(movable.before, [&](int i) { return position(i) <= 2 * a; }) &&
           std::ranges::all_of(after_[std::size_t(item)], [&](int i) { return position(i) >= 2 * a; });
  }

  // Ties go to the earlier item. least: the slack that counts, since sums differ by rounding.
  void fill(int a, double slack, double least) {
    while (slack > least) {
      int best = nowhere;
      double best_distance = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < items_.size(); ++i) {
        const double distance = std::abs(items_[i].ms - slack);
        if (assigned_[i] != nowhere || distance >= best_distance || !fits(int(i), a)) continue;
        best = int(i);
        best_distance = distance;
      }
      if (best == nowhere) return;
      assigned_[std::size_t(best)] = a;
      slack -= items_[std::size_t(best)].ms;
    }
  }

  const std::vector<Movable>& items_;
  std::vector<int> assigned_;
  std::vector<std::vector<int>> after_;
};

}  // namespace

std::vector<int> assign_greedily(const Assignment& problem) { return Greedy(problem).assigned(); }

double covered(const Assignment& problem, const std::vector<int>& assigned) {
  std::vector<double> filled(problem.slack.size());
  for (std::size_t i = 0; i < assigned.size(); ++i)
    if (assigned[i] >= 0) filled[std::size_t(assigned[i])] += problem.items[i].ms;
  double total = 0;
  for (std::size_t a = 0; a < filled.size(); ++a) total += std::min(problem.slack[a], filled[a]);
  return total;
}

// Reachability by bitsets: each instruction has one bit per all-to-all and direction. An all-to-all sets its own bit;
// one pass forward over the dependencies joins the bits of all earlier all-to-alls that reach an instruction, one pass
// backward those of all later all-to-alls that it reaches. Instructions are in program order, so one pass each
// suffices.
Labels::Labels(const Dependencies& dependencies, const std::vector<ir::InstructionId>& all_to_alls)
    : words_((all_to_alls.size() + 63) / 64),
      reached_(dependencies.size() * words_),
      reaches_(dependencies.size() * words_) {
  for (std::size_t a = 0; a < all_to_alls.size(); ++a)
    for (Bits* bits : {&reached_, &reaches_})
      (*bits)[all_to_alls[a].index() * words_ + a / 64] |= std::uint64_t{1} << (a % 64);
  for (std::size_t i = 0; i < dependencies.size(); ++i)
    for (ir::InstructionId before : dependencies[i]) join(reached_, i, before.index());
  for (std::size_t i = dependencies.size(); i-- > 0;)
    for (ir::InstructionId before : dependencies[i]) join(reaches_, before.index(), i);
}

void Labels::join(Bits& bits, std::size_t into, std::size_t from) const {
  for (std::size_t word = 0; word < words_; ++word) bits[into * words_ + word] |= bits[from * words_ + word];
}

}  // namespace lancet::schedule
