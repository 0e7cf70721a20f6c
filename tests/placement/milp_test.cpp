// The mixed-integer program against brute force, and its parts.
#include "lancet/placement/milp.h"

#include <chrono>

#include "lancet/placement/linear_solver.h"
#include "lancet/placement/solvers.h"
#include "lancet/placement/violations.h"
#include "placement/brute_force.h"
#include "placement/support.h"

namespace lancet::placement::test {
namespace {

// 5 to 9 ops on 2 or 3 unlike devices; every third problem has groups, every fifth equal devices.
Problem small_problem(std::uint32_t seed) {
  Problem problem =
      random_problem(seed, 5 + int(seed % 5), 2 + int(seed % 2), 1.0 + double(seed % 4) / 2, seed % 3 == 0);
  if (seed % 5 == 0) {
    for (Op& op : problem.ops) op.ms.assign(op.ms.size(), op.ms.front());
    for (auto& row : problem.ms_per_mb)
      for (double& value : row) value = value > 0 ? 0.5 : 0;
    for (auto& row : problem.latency_ms)
      for (double& value : row) value = value > 0 ? 0.02 : 0;
  }
  return problem;
}

}  // namespace

TEST_CASE("the integer program finds brute force's optimum on 50 random graphs") {
  if (linear_solver().empty()) {
    WARN("SKIPPED: this build has no CBC");
    return;
  }
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    const Problem problem = small_problem(seed);
    CAPTURE(seed, problem.op_count(), problem.device_count());
    const auto t0 = std::chrono::steady_clock::now();
    const auto best = brute_force_ms(problem);
    const auto t1 = std::chrono::steady_clock::now();
    const auto start = list_search(problem, {.seconds = 60, .moves = 300});
    MilpOptions options;
    if (start.ok()) options.start = &*start;
    const auto found = solve_milp(problem, options);
    fmt::print("{} ops {} dev {}: brute {:.2f}s milp {:.2f}s ", seed, problem.op_count(), problem.device_count(),
               std::chrono::duration<double>(t1 - t0).count(),
               std::chrono::duration<double>(std::chrono::steady_clock::now() - t1).count());
    fmt::print("best {} etf {} ", best.value_or(-1), start.ok() ? start->makespan_ms : -1);
    if (found.ok())
      fmt::print("milp {} bound {} proven {} ({} cols {} int {} rows)\n", found->placement.makespan_ms, found->bound_ms,
                 found->proven, found->columns, found->integers, found->rows);
    else
      fmt::print("{}\n", found.error().message);
    CHECK(best.has_value() == found.ok());
    if (!best.has_value() || !found.ok()) continue;
    CHECK(violations(problem, found->placement).empty());
    CHECK(found->placement.makespan_ms == Approx(*best).epsilon(1e-5));
    CHECK(found->bound_ms == Approx(*best).epsilon(1e-5));
    CHECK(found->proven);
  }
}

}  // namespace lancet::placement::test
#include <fstream>
#include "placement/milp_model.h"
namespace lancet::placement::test {
TEST_CASE("dump", "[.]") {
  const Problem problem = small_problem(7);
  const auto start = etf(problem);
  for (const double h : {start->makespan_ms, 9.0, 7.46, 6.5}) {
    const MilpModel model = milp_model(problem, h);
    std::ofstream(fmt::format("/tmp/milp_{:.3f}.lp", h)) << model.linear.text();
    LinearOptions o;
    for (int s = 0; s < 2; ++s) {
      if (s && h == start->makespan_ms) o.start = milp_start(model, problem, *start);
      const auto a = solve_linear(model.linear, o);
      fmt::print("{} start {}: status {} obj {} bound {} s {}\n", h, !o.start.empty(), int(a->status),
                 a->objective * model.scale, a->bound * model.scale, a->seconds);
    }
  }
}
}  // namespace lancet::placement::test
