// The greedy of the paper goes through the all-to-alls in launch order. It fills each one: it repeatedly assigns the
// item whose time is closest to the remaining slack. A short all-to-all may thus receive a long item that fits a later
// all-to-all better, so a local search follows: single items move to another all-to-all, and pairs of items swap
// theirs, for as long as the objective grows. Last, items that cover nothing return to their default positions. Every
// step keeps the constraints: an item is assigned only where that is allowed, and positions respect the order of
// dependent items.
#include "assign_dw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lancet::schedule {
namespace {

constexpr int nowhere = -1;

class Assign {
 public:
  explicit Assign(const Assignment& problem)
      : problem_(problem),
        items_(problem.items),
        assigned_(items_.size(), nowhere),
        filled_(problem.slack.size()),
        after_(items_.size()) {
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (int before : items_[i].before) after_[std::size_t(before)].push_back(int(i));
    double total = 0;
    for (double slack : problem.slack) total += slack;
    gain_ = 1e-9 * total;  // the least change that counts: sums differ by rounding
  }

  std::vector<int> greedy() {
    for (std::size_t a = 0; a < filled_.size(); ++a) fill(int(a));
    return assigned_;
  }

  std::vector<int> run() {
    greedy();
    // Each round gains, so the loop ends; the bound stops it when rounds gain next to nothing.
    for (int round = 0; round < 50 && improve(); ++round) {
    }
    for (std::size_t i = items_.size(); i-- > 0;)
      if (assigned_[i] != nowhere && change(assigned_[i], -items_[i].ms) > -gain_ && fits(int(i), nowhere))
        put(int(i), nowhere);
    return std::move(assigned_);
  }

 private:
  // The change of the objective if all-to-all a gets `ms` more work (negative: less).
  double change(int a, double ms) const {
    if (a == nowhere) return 0;
    const double slack = problem_.slack[std::size_t(a)], filled = filled_[std::size_t(a)];
    return std::min(slack, filled + ms) - std::min(slack, filled);
  }

  int position(int item, int a) const { return a == nowhere ? items_[std::size_t(item)].default_position : 2 * a; }
  int position(int item) const { return position(item, assigned_[std::size_t(item)]); }

  // True if the item is allowed there, and is neither before an item that it needs nor after one that needs it.
  bool fits(int item, int a) const {
    const Movable& movable = items_[std::size_t(item)];
    if (a != nowhere && !movable.allowed[std::size_t(a)]) return false;
    const int here = position(item, a);
    return std::ranges::all_of(movable.before, [&](int i) { return position(i) <= here; }) &&
           std::ranges::all_of(after_[std::size_t(item)], [&](int i) { return position(i) >= here; });
  }

  void put(int item, int a) {
    int& assigned = assigned_[std::size_t(item)];
    const double ms = items_[std::size_t(item)].ms;
    if (assigned != nowhere) filled_[std::size_t(assigned)] -= ms;
    if (a != nowhere) filled_[std::size_t(a)] += ms;
    assigned = a;
  }

  // The paper's greedy for one all-to-all; ties go to the earlier item.
  void fill(int a) {
    for (;;) {
      const double left = problem_.slack[std::size_t(a)] - filled_[std::size_t(a)];
      if (left <= gain_) return;
      int best = nowhere;
      double best_distance = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < items_.size(); ++i) {
        const double distance = std::abs(items_[i].ms - left);
        if (assigned_[i] != nowhere || distance >= best_distance || !fits(int(i), a)) continue;
        best = int(i);
        best_distance = distance;
      }
      if (best == nowhere) return;
      put(best, a);
    }
  }

  bool improve() {
    bool improved = false;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      for (std::size_t a = 0; a < filled_.size(); ++a) improved |= move(int(i), int(a));
      for (std::size_t other = i + 1; other < items_.size(); ++other) improved |= swap(int(i), int(other));
    }
    return improved;
  }

  bool move(int item, int to) {
    const int from = assigned_[std::size_t(item)];
    const double ms = items_[std::size_t(item)].ms;
    if (from == to || change(to, ms) + change(from, -ms) <= gain_ || !fits(item, to)) return false;
    put(item, to);
    return true;
  }

  bool swap(int one, int other) {
    const int a = assigned_[std::size_t(one)], b = assigned_[std::size_t(other)];
    const double more = items_[std::size_t(other)].ms - items_[std::size_t(one)].ms;
    if (a == b || change(a, more) + change(b, -more) <= gain_) return false;
    put(one, b);
    put(other, a);
    if (fits(one, b) && fits(other, a)) return true;
    put(one, a);
    put(other, b);
    return false;
  }

  const Assignment& problem_;
  const std::vector<Movable>& items_;
  std::vector<int> assigned_;
  std::vector<double> filled_;
  std::vector<std::vector<int>> after_;
  double gain_ = 0;
};

}  // namespace

std::vector<int> assign(const Assignment& problem) { return Assign(problem).run(); }

std::vector<int> assign_greedily(const Assignment& problem) { return Assign(problem).greedy(); }

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
