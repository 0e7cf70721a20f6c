// Steps whose products are split over ranks, in parts of the batch: the collectives of activations go in parts, and
// the losses are those of the whole.
#include <algorithm>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "in_memory.h"
#include "train/meshes.h"

namespace lancet {
namespace {

struct PartsRun {
  test::Records records;  // of rank 0
  int split = 0;          // gathers, scatters and sums of activations in its plan that are parts
};

PartsRun parts_run(const config::Config& config, int ranks) {
  const test::DeclaredCosts costs;
  PartsRun run;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
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
  });
  if (!status.ok()) throw InternalError(status.error().message);
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
