// Training under collective_matmul: rings in the plan, and the losses of sequential.
#include <algorithm>
#include <catch2/catch.hpp>

#include "costs_of_rings.h"
#include "declared_costs.h"
#include "good.h"
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

test::Ran ring_run(const config::Config& config, int ranks, int steps) {
  const test::CostsOfRings costs;
  return test::run_of(config, ranks, steps, {.costs = &costs});
}

// The instructions of rank 0's plan with one of these ops.
std::ptrdiff_t count_of(const test::Ran& ran, std::span<const std::string_view> ops) {
  return std::ranges::count_if(ran.plan.program.instructions, [&](const ir::Instruction& at) {
    return std::ranges::count(ops, std::string_view(at.op)) > 0;
  });
}
constexpr std::string_view permutes[] = {"permute_shards"}, collectives[] = {"all_gather", "reduce_scatter"};

}  // namespace

TEST_CASE("collective_matmul: five steps are those of sequential, dense and with experts") {
  const bool experts = GENERATE(false, true);
  const ir::Mesh mesh =
      GENERATE(test::mesh_of(1, 1, 2), test::mesh_of(1, 1, 4), test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2));
  if (!experts && mesh[ir::Axis::expert] > 1) return;
  config::Config config = split_sequences(mesh, experts);
  const test::Ran rings = ring_run(config, mesh.ranks(), 5);
  config.overlap.policy = "sequential";
  const test::Ran expected = ring_run(config, mesh.ranks(), 5);
  INFO(to_string(mesh) << (experts ? ", experts" : ", dense") << ": " << count_of(rings, permutes) << " permutes, "
                       << count_of(rings, collectives) << " of " << count_of(expected, collectives)
                       << " collectives are left");
  CHECK(count_of(rings, permutes) > 0);
  CHECK(count_of(rings, collectives) < count_of(expected, collectives));
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
  const test::Ran rings = ring_run(config, mesh.ranks(), 5);
  config.overlap.policy = "sequential";
  const test::Ran expected = ring_run(config, mesh.ranks(), 5);
  CHECK(count_of(rings, permutes) > 0);
  for (std::size_t i = 0; i < expected.records.size(); ++i)
    CHECK(rings.records[i].loss ==
          Approx(expected.records[i].loss).epsilon(config.train.dtype == DType::bf16 ? 2e-3 : 1e-6));
}

TEST_CASE("collective_matmul: a plan with rings is one of the config, and one that lacks a product is not") {
  const test::TemporaryFolder folder;
  const test::CostsOfRings costs;
  const config::Config config = split_sequences(test::mesh_of(1, 1, 2), true);
  const auto plan = test::good(planner::plan_step({config, 2}, {.costs = &costs}));
  REQUIRE(plan->header.text("policy") == "collective_matmul");
  const std::string text = ir::print(*plan), file = folder / "plan.ir";
  std::ofstream(file) << text;
  const auto read = test::good(planner::read_plan(file, {config, 2}));
  CHECK(ir::print(*read) == text);
  std::string other = text;
  for (std::size_t at; (at = other.find("of=all_gather")) != other.npos;) other.replace(at, 13, "of=sum_shards");
  std::ofstream(file) << other;
  CHECK_FALSE(planner::read_plan(file, {config, 2}).ok());
}

// Steps whose products are split over ranks, in parts of the batch: the collectives of activations go in parts, and
// the losses are those of the whole.

namespace {

struct PartsRun {
  test::Records records;  // of rank 0
  int split = 0;          // gathers, scatters and sums of activations in its plan that are parts
};

PartsRun parts_run(const config::Config& config, int ranks) {
  const test::DeclaredCosts costs;
  PartsRun run;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = &costs}));
    for (int step = 0; step < 5; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) run.records.push_back(record);
    }
    if (world.rank() != 0) return {};
    run.split = int(std::ranges::count_if(trainer->executor().plan().program.instructions, [](const auto& at) {
      return (at.op == "all_gather" || at.op == "reduce_scatter" || at.op == "sum_shards") &&
             at.attributes.has("parts");
    }));
    return {};
  }));
  return run;
}

}  // namespace

TEST_CASE("tensor parallel: steps in parts of the batch train like the whole") {
  const bool experts = GENERATE(false, true), sequences = GENERATE(false, true);
  const ir::Mesh mesh = GENERATE(test::mesh_of(1, 1, 2), test::mesh_of(1, 1, 4), test::mesh_of(2, 1, 2));
  config::Config config = test::config_on(mesh);
  config.train.sequence_parallel = sequences;
  if (!experts) {
    config.model.moe_layer_freq = 0;
    config.model.num_local_experts.reset();
  }
  const PartsRun expected = parts_run(config, mesh.ranks());
  CHECK(expected.split == 0);
  config.overlap.parts = 2;
  for (const std::string policy : {"partition", "flowmoe", "lancet"}) {
    config.overlap.policy = policy;
    const PartsRun found = parts_run(config, mesh.ranks());
    INFO(to_string(mesh) << (experts ? ", experts" : ", dense") << (sequences ? ", sequences split" : "") << ", "
                         << policy << ": " << found.split << " collectives are parts");
    CHECK(found.split >= 4);
    for (std::size_t i = 0; i < expected.records.size(); ++i) {
      CHECK(found.records[i].loss == Approx(expected.records[i].loss).epsilon(1e-6));
      if (experts) CHECK(found.records[i].drop_pct.value() == expected.records[i].drop_pct.value());
    }
  }
}

}  // namespace lancet
