#include "lancet/placement/solvers.h"

#include <catch2/catch.hpp>

#include "good.h"
#include "support.h"

namespace lancet::placement {
namespace {

using test::chain;
using test::check_sound;
using test::problem_of;
using test::random_problem;

bool needs_missing_lp(const Result<Placement>& placement) {
  return !placement.ok() && placement.error().message.find("CBC") != std::string::npos;
}

void check_answer(const std::string& solver, const Problem& problem, double makespan, std::vector<int> device = {}) {
  INFO(solver);
  const auto known = std::ranges::find(list_solvers(), solver, &Solver::name);
  REQUIRE(known != list_solvers().end());
  const auto placement = known->solve(problem);
  if (needs_missing_lp(placement)) {
    WARN("SKIPPED: " << placement.error().message);
    return;
  }
  REQUIRE(placement.ok());
  check_sound(problem, *placement);
  CHECK(placement->makespan_ms == Approx(makespan));
  if (!device.empty()) CHECK(placement->device == device);
}

// The shortest timetable of all assignments, for problems whose flows and ops have one sensible order.
double shortest_in_order(const Problem& problem) {
  std::vector<int> device(problem.ops.size(), 0), order = order_by(std::vector<double>(problem.ops.size(), 0));
  double best = never;
  for (;;) {
    std::vector<double> mb(problem.devices.size(), 0);
    bool fits = true;
    for (std::size_t op = 0; op < device.size(); ++op) {
      const std::size_t k = std::size_t(device[op]);
      fits &= (mb[k] += problem.ops[op].mb) <= problem.devices[k].memory_mb;
    }
    if (fits) best = std::min(best, timetable(problem, device, order).makespan_ms);
    std::size_t op = 0;
    while (op < device.size() && ++device[op] == problem.device_count()) device[op++] = 0;
    if (op == device.size()) return best;
  }
}

}  // namespace

TEST_CASE("even takes equal shares in order") {
  const Problem problem = problem_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}}, chain(4));
  check_answer("even", problem, 1 + 1 + 1 + 2 + 2, {0, 0, 1, 1});
}

TEST_CASE("list schedulers on graphs whose answer is known") {
  // Two equal ops that nothing joins: one on each device.
  const Problem apart = problem_of({{3, 3}, {3, 3}}, {});
  for (const char* solver : {"even", "heft", "etf", "msct", "getf"}) check_answer(solver, apart, 3);
  // A fork whose flows cost more than they bring: all on one device.
  const Problem fork = problem_of({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, {{0, 1, 9}, {0, 2, 9}, {1, 3, 9}, {2, 3, 9}});
  for (const char* solver : {"heft", "etf", "msct", "getf"}) check_answer(solver, fork, 4);
  // The same with flows that cost little: one of the two in the middle leaves, and the last op joins it:
  // 1 + 0.1 + 3 + 1.
  const Problem cheap =
      problem_of({{1, 1}, {3, 3}, {3, 3}, {1, 1}}, {{0, 1, 0.1}, {0, 2, 0.1}, {1, 3, 0.1}, {2, 3, 0.1}});
  for (const char* solver : {"heft", "etf", "msct", "getf"}) check_answer(solver, cheap, 5.1);
}

TEST_CASE("HEFT takes the device on which an op ends first, ETF the one on which it starts first") {
  // Both devices are idle; op0 runs on either, but ends first on the second one. ETF's rule for equal starts is its
  // end.
  const Problem one = problem_of({{5, 2}}, {});
  check_answer("heft", one, 2, {1});
  check_answer("etf", one, 2, {1});
  // op1 could start at once on the slow device; on the fast one it would wait for op0 and yet end earlier.
  const Problem two = problem_of({{4, 40}, {1, 10}}, {});
  check_answer("heft", two, 5, {0, 0});
  check_answer("etf", two, 10, {0, 1});
}

// op0 ends at 1 on the first device and has two children. The longer chain starts with its favourite child, op1.
TEST_CASE("m-SCT keeps a device for the favourite child") {
  const Problem problem = problem_of({{1, 1}, {5, 5}, {1, 1}, {1, 1}}, {{0, 1, 2}, {0, 2, 2}, {1, 3, 2}});
  check_answer("msct", problem, 7, {0, 0, 1, 0});
}

// Speeds 1, 1 and 1/10. All work fits the fast group; ETF uses the slow device, since it is idle.
TEST_CASE("GETF leaves slow devices idle where the fast ones do") {
  const Problem problem = problem_of({{2, 2, 20}, {2, 2, 20}, {2, 2, 20}, {2, 2, 20}}, {});
  check_answer("etf", problem, 20);
  check_answer("getf", problem, 4);
}

TEST_CASE("memory forces a split") {
  Problem problem = problem_of({{1, 3}, {1, 3}, {1, 3}, {1, 3}}, chain(4));
  for (Op& op : problem.ops) op.mb = 10;
  problem.devices[0].memory_mb = 25;
  problem.devices[1].memory_mb = 20;
  // Two on the fast device, a flow of 1, two on the slow one; or the other way round.
  for (const char* solver : {"even", "heft", "etf", "msct", "getf"}) check_answer(solver, problem, 1 + 1 + 1 + 3 + 3);
  const auto found = lancet::test::good(list_search(problem, {.moves = 1000}));
  CHECK(found->makespan_ms == Approx(9));
}

TEST_CASE("the search leaves slow links alone") {
  const Problem problem =
      problem_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}}, {{0, 1, 9}, {0, 2, 9}, {1, 3, 9}, {2, 4, 9}});
  const auto found = lancet::test::good(list_search(problem, {.moves = 1000}));
  CHECK(found->makespan_ms == Approx(5));
  CHECK(found->device == std::vector<int>{0, 0, 0, 0, 0});
}

TEST_CASE("a group goes where all of its ops fit") {
  Problem problem = problem_of({{1, 2}, {1, 1.5}, {1, 2}}, chain(3));
  problem.ops[0].group = problem.ops[2].group = 0;
  problem.ops[0].mb = problem.ops[2].mb = 6;
  problem.devices[0].memory_mb = 10;
  // op0 and op2 have 12 MB together and only the second device holds them.
  for (const char* solver : {"heft", "etf", "msct", "getf"}) check_answer(solver, problem, 5.5, {1, 1, 1});
}

TEST_CASE("what does not fit is an error of one line") {
  Problem problem = problem_of({{1, 1}, {1, 1}, {1, 1}}, chain(3));
  for (Op& op : problem.ops) op.mb = 10;
  for (Device& device : problem.devices) device.memory_mb = 12;  // 24 MB for 30
  for (const Solver& solver : list_solvers()) {
    const auto placement = solver.solve(problem);
    if (needs_missing_lp(placement)) continue;
    INFO(solver.name);
    REQUIRE(!placement.ok());
    CHECK(placement.error().code == ExitCode::config);
    CHECK(placement.error().message.starts_with(std::string(solver.name) +
                                                ": expected a device with memory left for 'op"));
    CHECK(placement.error().message.ends_with("', found none; other solvers may find a placement"));
  }
  CHECK(list_search(problem).error().message ==
        "search: expected a placement of 3 ops that fits the memory of 2 devices, found none");
  CHECK(check_problem(problem).error().message ==
        "expected at least 30.0 MB of memory in all devices together, which all ops need, found 24.0 MB");
  problem.ops[1].mb = 13;
  CHECK(check_problem(problem).error().message ==
        "expected a device that holds 'op1', 13.0 MB, found none: the largest has 12.0 MB");
  problem.ops[1].group = problem.ops[2].group = 0;
  CHECK(check_problem(problem).error().message ==
        "expected a device that holds 'op1' and the ops beside it, 23.0 MB, found none: the largest has 12.0 MB");
  for (Op& op : problem.ops) op.mb = 1, op.group = -1;
  CHECK(check_problem(problem).ok());
}

// A forward chain, its backward chain, and weight gradients that only their own backward op precedes.
TEST_CASE("where backward ops share the device of their forward op, list schedulers leave an equal device idle") {
  std::vector<std::vector<double>> ms(9, {1, 1});
  std::vector<Flow> flows{{0, 1, 0.1}, {1, 2, 0.1}, {2, 3, 0.1}, {3, 5, 0.1}, {5, 7, 0.1}};           // 3, 5, 7: dX
  for (const auto& [from, to] : {std::pair(2, 4), {3, 6}, {5, 8}}) flows.push_back({from, to, 0.1});  // 4, 6, 8: dW
  Problem problem = problem_of(ms, flows);
  for (const char* solver : {"heft", "etf", "msct", "getf"}) check_answer(solver, problem, 6.1);
  const int group[] = {2, 1, 0, 0, 0, 1, 1, 2, 2};  // of the last, middle and first layer
  for (int op = 0; op < 9; ++op) problem.ops[std::size_t(op)].group = group[std::size_t(op)];
  // A forward chain stays on the device where it begins, and so do then the groups.
  for (const char* solver : {"heft", "etf", "msct", "getf"})
    check_answer(solver, problem, 9, {0, 0, 0, 0, 0, 0, 0, 0, 0});
  const auto found = lancet::test::good(list_search(problem, {.moves = 2000}));
  CHECK(found->makespan_ms < 8);
}

TEST_CASE("packing finds a place where list schedulers run out of memory") {
  // 6 + 4 and 5 + 5 fill two devices of 10; in the order of the chain each device gets 6 + ... and 4 is left over.
  Problem problem = problem_of({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, chain(4));
  const double mb[] = {5, 4, 6, 5};
  for (std::size_t op = 0; op < 4; ++op) problem.ops[op].mb = mb[op];
  for (Device& device : problem.devices) device.memory_mb = 10;
  CHECK(!heft(problem).ok());
  const auto found = lancet::test::good(list_search(problem, {.moves = 1000}));
  check_sound(problem, *found);
  CHECK(found->makespan_ms == Approx(shortest_in_order(problem)));
}

// The best split of a chain: 2 ops on the slow device, whose memory ends there, then 3 on the fast one.
TEST_CASE("splits into neighbouring runs are exact for chains") {
  Problem problem = problem_of({{2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}}, {{0, 1, 5}, {1, 2, 1}, {2, 3, 5}, {3, 4, 5}});
  for (Op& op : problem.ops) op.mb = 10;
  problem.devices[0].memory_mb = 20;
  problem.devices[1].memory_mb = 40;
  const auto splits = contiguous_splits(problem, units_of(problem));
  REQUIRE(splits.size() == 2);                          // one for each order of the devices
  CHECK(splits[0] == std::vector<int>{0, 0, 1, 1, 1});  // 2 + 2 + 1 + 3; a border before op1 costs 5
  CHECK(splits[1] == std::vector<int>{1, 1, 1, 1, 0});  // 4 + 5 + 2
  problem.devices[0].memory_mb = 5;
  CHECK(contiguous_splits(problem, units_of(problem)).empty());
}

TEST_CASE("all solvers' answers are sound, and none is shorter than the search's") {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    const int devices = 1 + int(seed % 4);
    const Problem problem = random_problem(seed, 5 + int(seed), devices, 1.5);
    INFO("seed " << seed);
    const auto searched = lancet::test::good(list_search(problem, {.seconds = 10, .moves = 300}));
    check_sound(problem, *searched);
    CHECK(lower_bound_ms(problem) <= searched->makespan_ms + 1e-9);
    for (const Solver& solver : list_solvers()) {
      const auto placement = solver.solve(problem);
      if (!placement.ok()) continue;  // out of memory
      check_sound(problem, *placement);
      CHECK(searched->makespan_ms <= placement->makespan_ms);
      CHECK(lower_bound_ms(problem) <= placement->makespan_ms + 1e-9);
    }
  }
}

TEST_CASE("the search finds the best assignment of small chains") {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    Problem problem = random_problem(seed, 7, 3, 1, false);
    problem.flows.clear();
    for (const Flow& flow : chain(7)) problem.flows.push_back({flow.from, flow.to, double(seed % 5) * 0.3});
    for (Device& device : problem.devices) device.memory_mb *= 0.75;
    const auto found = list_search(problem, {.seconds = 10, .moves = 10'000});
    INFO("seed " << seed);
    REQUIRE(found.ok());
    CHECK(found->makespan_ms == Approx(shortest_in_order(problem)));
  }
}

TEST_CASE("the search is within 5% of the optimum of small graphs") {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    const Problem problem = random_problem(seed, 5 + int(seed % 5), 2 + int(seed % 2), 1.0 + double(seed % 4) / 2);
    const auto best = test::brute_force_ms(problem);
    const auto found = list_search(problem, {.seconds = 10, .moves = 10'000});
    INFO("seed " << seed);
    REQUIRE(best.has_value() == found.ok());
    if (best) CHECK(found->makespan_ms <= 1.05 * *best);
    if (best) CHECK(found->makespan_ms >= *best * (1 - 1e-9));
  }
}

TEST_CASE("a search that ends by its moves gives the same answer in every run") {
  const Problem problem = random_problem(7, 40, 4, 2);
  const SearchOptions options{.seconds = 100, .moves = 500};
  const auto one = list_search(problem, options), other = list_search(problem, options);
  REQUIRE(one.ok());
  CHECK(one->device == other->device);
  CHECK(one->makespan_ms == other->makespan_ms);
}

TEST_CASE("a lower bound is the longer of chain and load") {
  CHECK(lower_bound_ms(problem_of({{2, 3}, {4, 1}, {1, 5}}, chain(3))) == Approx(2 + 1 + 1));
  // Nine equal ops on devices of speeds 1 and 1/2: six and three of them.
  CHECK(lower_bound_ms(problem_of(std::vector<std::vector<double>>(9, {1, 2}), {})) == Approx(6).epsilon(0.01));
  CHECK(lower_bound_ms(problem_of(std::vector<std::vector<double>>(9, {1, 2}), {})) <= 6 + 1e-9);
}

}  // namespace lancet::placement
