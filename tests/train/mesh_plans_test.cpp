// Plans for meshes: every policy makes one, on ranks that meet in the same collectives.
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "lancet/ir/verify_ranks.h"
#include "lancet/planner/planner.h"
#include "lancet/planning/from_config.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using mesh::Axis;
using mesh::Mesh;
using test::config_on;
using test::Records;

// Checks the plan that all ranks of the mesh run.
void check_on_all_ranks(const Result<ir::Plan>& plan, const Mesh& mesh) {
  if (!plan.ok()) FAIL(plan.error().message);
  const std::vector<const ir::Plan*> plans(std::size_t(mesh.ranks()), &*plan);
  const Status status = ir::verify_ranks(plans, mesh);
  if (!status.ok()) FAIL_CHECK(status.error().message);
}

void check_plans(config::Config config, const Mesh& mesh) {
  const test::DeclaredCosts costs;
  for (const auto& [policy, what, cuts] : planner::policies()) {
    INFO(to_string(mesh) << ", " << policy << ", train.zero " << config.train.zero);
    config.overlap.policy = policy;
    check_on_all_ranks(planning::plan_step(config, mesh.ranks(), {.costs = &costs}), mesh);
  }
}

// Rank 0's records of steps that are planned with declared costs.
Records planned_steps(const config::Config& config, int ranks, int steps) {
  const test::DeclaredCosts costs;
  Records records;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = &costs}));
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) records.push_back(record);
    }
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  return records;
}

void check_policies(config::Config config, int ranks, int steps) {
  const Records expected = planned_steps(config, ranks, steps);
  for (const auto& [policy, what, cuts] : planner::policies()) {
    INFO(policy << " on " << ranks << " ranks");
    config.overlap.policy = policy;
    const Records found = planned_steps(config, ranks, steps);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i].loss == Approx(expected[i].loss).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("mesh plans: of every policy run on all ranks without a deadlock") {
  const Mesh mesh = GENERATE(from_range(test::meshes));
  config::Config config = config_on(mesh);
  for (const int zero : {0, 1}) {
    config.train.zero = zero;
    check_plans(config, mesh);
  }
  config.train.gradient_accumulation_steps = 2;
  config.train.sequence_parallel = true;
  check_plans(config, mesh);
}

TEST_CASE("mesh plans: every policy trains like sequential, where tensor splits the layers") {
  const Mesh mesh = GENERATE(test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2));
  check_policies(config_on(mesh), mesh.ranks(), 20);
}

TEST_CASE("mesh plans: every policy trains like sequential, where no tokens travel") {
  const Mesh mesh = GENERATE(test::mesh_of(4, 1, 1), test::mesh_of(1, 1, 4));
  check_policies(config_on(mesh), mesh.ranks(), 5);
}

TEST_CASE("mesh plans: every policy trains like sequential, where tensor splits sequences") {
  const Mesh mesh = GENERATE(test::mesh_of(1, 2, 2), test::mesh_of(1, 1, 4));
  config::Config config = config_on(mesh);
  config.train.sequence_parallel = true;
  config.train.zero = 1;
  check_policies(config, mesh.ranks(), 5);
}

}  // namespace lancet
