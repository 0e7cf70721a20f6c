// Training under collective_matmul: rings in the plan, the losses of sequential, resumed runs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "costs_of_rings.h"
#include "in_memory.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "temporary_folder.h"
#include "train/meshes.h"

namespace lancet {
namespace {

config::Config split_sequences(const ir::Mesh& mesh, bool experts) {
  config::Config config = test::config_on(mesh);
  config.train.sequence_parallel = true;
  config.overlap.policy = "collective_matmul";
  if (!experts) {
    config.model.moe_layer_freq = 0;
    config.model.num_local_experts.reset();
  }
  return config;
}

struct RingRun {
  test::Records records;              // of rank 0
  int permutes = 0, collectives = 0;  // in its plan
};

RingRun ring_run(const config::Config& config, int ranks, int steps) {
  const test::CostsOfRings costs;
  RingRun run;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = &costs}));
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) run.records.push_back(record);
    }
    if (world.rank() != 0) return {};
    const auto& instructions = trainer->executor().plan().program.instructions;
    run.permutes = int(std::ranges::count(instructions, "permute_shards", &ir::Instruction::op));
    run.collectives = int(std::ranges::count(instructions, "all_gather", &ir::Instruction::op) +
                          std::ranges::count(instructions, "reduce_scatter", &ir::Instruction::op));
    return {};
  });
  if (!status.ok()) throw InternalError(status.error().message);
  return run;
}

std::vector<double> losses_with_rings(config::Config config, const std::string& folder, int ranks, int stop) {
  const test::CostsOfRings costs;
  return test::losses_of_run(std::move(config), folder, ranks, stop, &costs);
}

}  // namespace

TEST_CASE("collective_matmul: five steps are those of sequential, dense and with experts") {
  const bool experts = GENERATE(false, true);
  const ir::Mesh mesh =
      GENERATE(test::mesh_of(1, 1, 2), test::mesh_of(1, 1, 4), test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2));
  if (!experts && mesh[ir::Axis::expert] > 1) return;
  config::Config config = split_sequences(mesh, experts);
  const RingRun rings = ring_run(config, mesh.ranks(), 5);
  config.overlap.policy = "sequential";
  const RingRun expected = ring_run(config, mesh.ranks(), 5);
  INFO(to_string(mesh) << (experts ? ", experts" : ", dense") << ": " << rings.permutes << " permutes, "
                       << rings.collectives << " of " << expected.collectives << " collectives are left");
  CHECK(rings.permutes > 0);
  CHECK(rings.collectives < expected.collectives);
  for (std::size_t i = 0; i < expected.records.size(); ++i) {
    CHECK(rings.records[i].loss == Approx(expected.records[i].loss).epsilon(1e-6));
    if (experts) CHECK(rings.records[i].drop_pct.value() == expected.records[i].drop_pct.value());
  }
}

TEST_CASE("collective_matmul: bf16, micro batches and sharded optimizer state train as under sequential") {
  const ir::Mesh mesh = test::mesh_of(2, 1, 2);
  config::Config config = split_sequences(mesh, true);
  config.train.zero = 1;
  SECTION("bf16") { config.train.dtype = DType::bf16; }
  SECTION("two micro batches") {
    config.train.micro_batch_size /= 2;
    config.train.gradient_accumulation_steps = 2;
  }
  const RingRun rings = ring_run(config, mesh.ranks(), 5);
  config.overlap.policy = "sequential";
  const RingRun expected = ring_run(config, mesh.ranks(), 5);
  CHECK(rings.permutes > 0);
  for (std::size_t i = 0; i < expected.records.size(); ++i)
    CHECK(rings.records[i].loss ==
          Approx(expected.records[i].loss).epsilon(config.train.dtype == DType::bf16 ? 2e-3 : 1e-6));
}

TEST_CASE("collective_matmul: runs resume bit for bit") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  config::Config config = split_sequences(test::mesh_of(1, 2, 2), true);
  config.train.save_interval = 100;
  config.train.zero = 1;
  const auto whole = losses_with_rings(config, folder / "whole", 4, 0);
  REQUIRE(whole.size() == 6);
  losses_with_rings(config, folder / "stopped", 4, 3);
  CHECK(losses_with_rings(config, folder / "stopped", 4, 0) == whole);
}

TEST_CASE("collective_matmul: a plan with rings is one of the config, and one that lacks a product is not") {
  const test::TemporaryFolder folder;
  const test::CostsOfRings costs;
  const config::Config config = split_sequences(test::mesh_of(1, 1, 2), true);
  const auto plan = planner::plan_step({config, 2}, {.costs = &costs});
  REQUIRE(plan.ok());
  REQUIRE(plan->header.text("policy") == "collective_matmul");
  const std::string text = ir::print(*plan), file = folder / "plan.ir";
  std::ofstream(file) << text;
  const auto read = planner::read_plan(file, {config, 2});
  INFO((read.ok() ? "" : read.error().message));
  REQUIRE(read.ok());
  CHECK(ir::print(*read) == text);
  std::string other = text;
  for (std::size_t at; (at = other.find("of=all_gather")) != other.npos;) other.replace(at, 13, "of=sum_shards");
  std::ofstream(file) << other;
  CHECK_FALSE(planner::read_plan(file, {config, 2}).ok());
}

}  // namespace lancet
