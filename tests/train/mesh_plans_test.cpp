// Plans for meshes: every policy makes one, on ranks that meet in the same collectives, and trains as without overlap.
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/planner/planner.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using ir::Mesh;
using test::config_on;
using test::Records;

// Rank 0's records of steps that are planned with declared costs. The plan must run on all ranks without a deadlock.
Records planned_steps(const config::Config& config, const Mesh& mesh) {
  const test::DeclaredCosts costs;
  const auto plan = planner::plan_step({config, mesh.ranks()}, {.costs = &costs});
  if (!plan.ok()) FAIL(plan.error().message);
  const std::vector<const ir::Plan*> plans(std::size_t(mesh.ranks()), &*plan);
  const Status status = ir::verify_ranks(plans, mesh);
  if (!status.ok()) FAIL_CHECK(status.error().message);
  if (mesh.ranks() > 4) return {};  // the plan is enough
  return test::run_steps(config, mesh.ranks(), 3, {}, &costs);
}

}  // namespace

// Every policy on every mesh, which has one of three ways to hold a step: with the optimizer's state whole or sharded,
// and in two micro batches whose sequences tensor splits. Each policy and each mesh meets each of them.
TEST_CASE("mesh plans: every policy runs on all ranks without a deadlock, and trains like sequential") {
  const int number = GENERATE(range(0, int(test::meshes.size())));
  const Mesh& mesh = test::meshes[std::size_t(number)];
  const int way = GENERATE(0, 1, 2);
  config::Config config = config_on(mesh);
  config.train.zero = way > 0;
  if (way == 2) {
    config.train.gradient_accumulation_steps = 2;
    config.train.sequence_parallel = true;
  }
  const Records expected = planned_steps(config, mesh);
  const std::vector<planner::PolicyInfo> policies = planner::policies();
  for (int i = 0; i < int(policies.size()); ++i) {
    if ((number + i) % 3 != way) continue;
    INFO(to_string(mesh) << ", " << policies[std::size_t(i)].name << ", way " << way);
    config.overlap.policy = policies[std::size_t(i)].name;
    const Records found = planned_steps(config, mesh);
    REQUIRE(found.size() == expected.size());
    for (std::size_t at = 0; at < expected.size(); ++at)
      CHECK(found[at].loss == Approx(expected[at].loss).epsilon(1e-6));
  }
}

}  // namespace lancet
