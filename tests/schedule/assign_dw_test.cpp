// The assignment compared with the optimum of the paper's integer program (1)-(2), found by branch and bound.
#include "schedule/assign_dw.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "steps/support.h"

using namespace lancet;
using Under = std::vector<int>;
using schedule::assign_greedily;
using schedule::Assignment;
using schedule::covered;
using schedule::Movable;

namespace {

// Branch and bound, largest items first; a branch ends if even the whole rest could not beat the best value.
class Optimum {
 public:
  explicit Optimum(const Assignment& problem)
      : problem_(problem), left_(problem.slack), order_(problem.items.size()), rest_(problem.items.size() + 1) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return problem.items[a].ms > problem.items[b].ms; });
    for (std::size_t k = order_.size(); k-- > 0;) rest_[k] = rest_[k + 1] + problem.items[order_[k]].ms;
  }
  double find() {
    search(0, 0);
    return best_;
  }

 private:
  void search(std::size_t k, double value) {
    best_ = std::max(best_, value);
    double slack = 0;
    for (double left : left_) slack += std::max(0.0, left);
    if (k == order_.size() || value + std::min(rest_[k], slack) <= best_ + 1e-12) return;
    const Movable& item = problem_.items[order_[k]];
    for (std::size_t a = 0; a < left_.size(); ++a) {
      const double gain = std::min(item.ms, left_[a]);
      if (!item.allowed[a] || gain <= 0) continue;
      left_[a] -= item.ms;
      search(k + 1, value + gain);
      left_[a] += item.ms;
    }
    search(k + 1, value);
  }
  const Assignment& problem_;
  std::vector<double> left_;
  std::vector<std::size_t> order_;
  std::vector<double> rest_;
  double best_ = 0;
};

Assignment problem(std::vector<double> slack, const std::vector<std::pair<double, int>>& items) {
  Assignment result{std::move(slack), {}};
  for (const auto& [ms, first] : items) {  // allowed from all-to-all `first` on
    Movable item{ms, std::vector<bool>(result.slack.size()), 2 * first - 1, {}};
    for (std::size_t a = std::size_t(first); a < result.slack.size(); ++a) item.allowed[a] = true;
    result.items.push_back(item);
  }
  return result;
}

// A backward pass: dWs of a few sizes that become ready between all-to-alls; `scarce` is the total slack over the total
// work.
Assignment random_problem(std::uint32_t seed, double scarce) {
  std::mt19937 random(seed);
  auto below = [&](unsigned n) { return random() % n; };
  std::vector<double> slack;
  for (std::size_t a = 2 + below(5); a > 0; --a) slack.push_back(0.5 + below(250) / 100.0);
  const double sizes[] = {0.3, 0.6, 1, 1.5, 2.5};
  std::vector<std::pair<double, int>> items;
  for (std::size_t i = 5 + below(14); i > 0; --i)
    items.push_back({sizes[below(5)], int(below(unsigned(slack.size())))});
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  double work = 0;
  for (const auto& item : items) work += item.first;
  const double scale = std::accumulate(slack.begin(), slack.end(), 0.0) / work / scarce;
  for (auto& item : items) item.first *= scale;
  return problem(slack, items);
}

void check_valid(const Assignment& p, const std::vector<int>& under) {
  auto place = [&](std::size_t i) { return under[i] < 0 ? p.items[i].default_position : 2 * under[i]; };
  REQUIRE(under.size() == p.items.size());
  for (std::size_t i = 0; i < under.size(); ++i) {
    if (under[i] >= 0) CHECK(p.items[i].allowed[std::size_t(under[i])]);
    for (int before : p.items[i].before) CHECK(place(std::size_t(before)) <= place(i));
  }
}

}  // namespace

TEST_CASE("dW assignment: the best fit") {
  CHECK(assign_greedily(problem({2}, {{1, 0}, {2, 0}, {3, 0}})) == Under{-1, 0, -1});  // exact
  CHECK(assign_greedily(problem({3}, {{1, 0}, {2, 0}})) == Under{0, 0});               // together
  CHECK(assign_greedily(problem({2, 3}, {{2, 0}, {3, 1}})) == Under{0, 1});            // one each
  CHECK(assign_greedily(problem({2}, {{1, 0}, {1, 0}, {1, 0}})) == Under{0, 0, -1});   // ties: the earlier
  CHECK(assign_greedily(problem({1}, {{5, 0}})) == Under{0});                          // longer than the slack
  CHECK(assign_greedily(problem({}, {{5, 0}})) == Under{-1});
  CHECK(assign_greedily(problem({4}, {})).empty());
}

TEST_CASE("dW assignment: order constraints between items are kept") {
  Assignment p = problem({1, 1}, {{1, 0}, {1, 0}});
  p.items[1].before = {0};
  p.items[0].allowed = {false, true};
  p.items[0].default_position = 1;
  p.items[1].allowed = {true, false};
  p.items[1].default_position = 3;
  CHECK(assign_greedily(p) == Under{1, -1});  // the second's only all-to-all comes before the first
  p.items[1].allowed = {true, true};
  p.items[0].allowed = {true, true};
  CHECK(assign_greedily(p) == Under{0, 1});
}

TEST_CASE("dW assignment against the optimum") {
  double mean = 0, worst = 0;
  int exact = 0, count = 0;
  for (double scarce : {0.5, 0.8, 1.0, 1.3, 2.0})
    for (std::uint32_t seed = 1; seed <= 60; ++seed) {
      const Assignment p = random_problem(seed, scarce);
      const std::vector<int> under = assign_greedily(p);
      check_valid(p, under);
      const double best = Optimum(p).find(), found = covered(p, under);
      INFO("seed " << seed << ", slack " << scarce << " of the work");
      REQUIRE(found <= best + 1e-9);
      const double gap = 1 - found / best;
      mean += gap;
      worst = std::max(worst, gap);
      exact += gap < 1e-9;
      ++count;
    }
  mean /= count;
  WARN("gap to the optimum: mean " << 100 * mean << "%, worst " << 100 * worst << "%; optimal " << exact << " of "
                                   << count);
  CHECK(mean < 0.04);
  CHECK(worst < 0.45);
}

TEST_CASE("dW assignment: order between items holds on random problems") {
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    Assignment p = random_problem(seed, 1);
    std::mt19937 random(seed);
    for (std::size_t i = 1; i < p.items.size(); ++i)
      if (random() % 3 == 0) p.items[i].before.push_back(int(random() % i));
    INFO("seed " << seed);
    const std::vector<int> under = assign_greedily(p);
    check_valid(p, under);
    CHECK(assign_greedily(p) == under);
  }
}

TEST_CASE("the greedy alone gives an all-to-all what is closest to the rest of its time, in launch order") {
  // The short first all-to-all takes the only item, whose time the second would hide five times as well.
  CHECK(assign_greedily(problem({2, 10}, {{10, 0}})) == Under{0});
  // Of 10 ms: 7 is closest, then 4 is as close to the rest of 3 as 2 is, and earlier. The rest is for the second.
  CHECK(assign_greedily(problem({10, 5}, {{4, 0}, {7, 0}, {2, 0}})) == Under{0, 0, 1});
  // An item that no all-to-all can hide stays where it is.
  CHECK(assign_greedily(problem({1}, {{1, 0}, {1, 0}})) == Under{0, -1});
}
