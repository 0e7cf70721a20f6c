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
        under_(items_.size(), nowhere),
        filled_(problem.room.size()),
        behind_(items_.size()) {
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (int before : items_[i].before) behind_[std::size_t(before)].push_back(int(i));
    double total = 0;
    for (double room : problem.room) total += room;
    gain_ = 1e-9 * total;  // what counts as one: sums differ by rounding
  }

  std::vector<int> greedily() {
    for (std::size_t a = 0; a < filled_.size(); ++a) fill(int(a));
    return under_;
  }

  std::vector<int> run() {
    greedily();
    // Each round gains, so it ends; the bound is against rounds that gain next to nothing.
    for (int round = 0; round < 50 && improve(); ++round) {
    }
    for (std::size_t i = items_.size(); i-- > 0;)
      if (under_[i] != nowhere && change(under_[i], -items_[i].ms) > -gain_ && fits(int(i), nowhere))
        put(int(i), nowhere);
    return std::move(under_);
  }

 private:
  // What all-to-all a hides more (less, if negative) with ms of work more under it.
  double change(int a, double ms) const {
    if (a == nowhere) return 0;
    const double room = problem_.room[std::size_t(a)], filled = filled_[std::size_t(a)];
    return std::min(room, filled + ms) - std::min(room, filled);
  }

  int place(int item, int a) const { return a == nowhere ? items_[std::size_t(item)].home : 2 * a; }
  int place(int item) const { return place(item, under_[std::size_t(item)]); }

  // Allowed there, behind what it needs and before what needs it.
  bool fits(int item, int a) const {
    const Movable& movable = items_[std::size_t(item)];
    if (a != nowhere && !movable.allowed[std::size_t(a)]) return false;
    const int here = place(item, a);
    return std::all_of(movable.before.begin(), movable.before.end(), [&](int i) { return place(i) <= here; }) &&
           std::all_of(behind_[std::size_t(item)].begin(), behind_[std::size_t(item)].end(),
                       [&](int i) { return place(i) >= here; });
  }

  void put(int item, int a) {
    int& under = under_[std::size_t(item)];
    const double ms = items_[std::size_t(item)].ms;
    if (under != nowhere) filled_[std::size_t(under)] -= ms;
    if (a != nowhere) filled_[std::size_t(a)] += ms;
    under = a;
  }

  // The paper's greedy for one all-to-all; ties go to the earlier item.
  void fill(int a) {
    for (;;) {
      const double left = problem_.room[std::size_t(a)] - filled_[std::size_t(a)];
      if (left <= gain_) return;
      int best = nowhere;
      double best_distance = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < items_.size(); ++i) {
        const double distance = std::abs(items_[i].ms - left);
        if (under_[i] != nowhere || distance >= best_distance || !fits(int(i), a)) continue;
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
    const int from = under_[std::size_t(item)];
    const double ms = items_[std::size_t(item)].ms;
    if (from == to || change(to, ms) + change(from, -ms) <= gain_ || !fits(item, to)) return false;
    put(item, to);
    return true;
  }

  bool swap(int one, int other) {
    const int a = under_[std::size_t(one)], b = under_[std::size_t(other)];
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
  std::vector<int> under_;
  std::vector<double> filled_;
  std::vector<std::vector<int>> behind_;
  double gain_ = 0;
};

}  // namespace

std::vector<int> assign(const Assignment& problem) { return Assign(problem).run(); }

std::vector<int> assign_greedily(const Assignment& problem) { return Assign(problem).greedily(); }

double covered(const Assignment& problem, const std::vector<int>& under) {
  std::vector<double> filled(problem.room.size());
  for (std::size_t i = 0; i < under.size(); ++i)
    if (under[i] >= 0) filled[std::size_t(under[i])] += problem.items[i].ms;
  double total = 0;
  for (std::size_t a = 0; a < filled.size(); ++a) total += std::min(problem.room[a], filled[a]);
  return total;
}

}  // namespace lancet::schedule
