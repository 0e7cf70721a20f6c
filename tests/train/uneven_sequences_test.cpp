// Sequences whose tokens the ranks along `tensor` do not divide, under train.sequence_parallel: every policy trains as
// one rank does, and runs resume.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "costs_of_rings.h"
#include "in_memory.h"
#include "lancet/ir/print.h"
#include "lancet/planning/from_config.h"
#include "routers.h"
#include "temporary_folder.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using mesh::Axis;
using mesh::Mesh;

constexpr std::int64_t uneven_tokens = 13;  // 2, 3 and 4 do not divide it

config::Config uneven_on(const Mesh& mesh, bool experts) {
  config::Config config = test::config_on(mesh);
  config.model.n_head = 12;
  config.model.n_embd = 48;
  config.train.seq_len = uneven_tokens;
  config.train.sequence_parallel = true;
  if (!experts) {
    config.model.moe_layer_freq = 0;
    config.model.num_local_experts.reset();
  }
  return config;
}

struct UnevenRun {
  test::Records records;  // of rank 0
  int permutes = 0, parts = 0;
};

UnevenRun uneven_run(const config::Config& config, int ranks, int steps) {
  const test::CostsOfRings costs;
  UnevenRun run;
  run.records = test::run_steps(
      config, ranks, steps,
      [&](train::Trainer& trainer, int rank) {
        if (rank > 0) return;
        const auto& instructions = trainer.executor().plan().program.instructions;
        run.permutes = int(std::ranges::count(instructions, "permute_shards", &ir::Instruction::op));
        run.parts = int(
            std::ranges::count_if(instructions, [](const ir::Instruction& at) { return at.attributes.has("parts"); }));
      },
      &costs);
  return run;
}

const std::vector<Mesh> uneven_meshes{test::mesh_of(1, 1, 2), test::mesh_of(1, 1, 3), test::mesh_of(1, 1, 4),
                                      test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2)};
const std::vector<std::string> uneven_policies{"sequential", "collective_matmul", "lancet"};

struct UnevenCase {
  bool experts = true;
  std::vector<Mesh> meshes = uneven_meshes;
  std::vector<std::string> policies = uneven_policies;
  std::function<void(config::Config&)> change = [](config::Config&) {};
};

// Twenty steps under each policy on each mesh against those of one rank.
void check_uneven(const UnevenCase& c) {
  config::Config alone = uneven_on({}, c.experts);
  c.change(alone);
  const test::Records expected = test::run_steps(alone, 1, 20);
  for (const Mesh& mesh : c.meshes)
    for (const std::string& policy : c.policies) {
      config::Config config = uneven_on(mesh, c.experts);
      c.change(config);
      config.overlap.policy = policy;
      const UnevenRun found = uneven_run(config, mesh.ranks(), 20);
      INFO(to_string(mesh) << ", " << policy << ": " << found.permutes << " permutes, " << found.parts << " parts");
      if (policy != "sequential") CHECK(found.permutes + (policy == "collective_matmul" ? 0 : found.parts) > 0);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO("step " << i + 1);
        CHECK(found.records[i].loss == Approx(expected[i].loss).epsilon(1e-5));
        CHECK(found.records[i].grad_norm == Approx(expected[i].grad_norm).epsilon(1e-4));
        if (c.experts) CHECK(found.records[i].drop_pct.value() == Approx(expected[i].drop_pct.value()).margin(0.2));
      }
    }
}

}  // namespace

TEST_CASE("uneven sequences: twenty dense steps are those of one rank under every policy") {
  std::vector<Mesh> meshes = uneven_meshes;
  std::erase_if(meshes, [](const Mesh& mesh) { return mesh[Axis::expert] > 1; });
  check_uneven({.experts = false, .meshes = meshes});
}

TEST_CASE("uneven sequences: twenty steps with experts are those of one rank under every policy") { check_uneven({}); }

TEST_CASE("uneven sequences: every router's steps are those of one rank") {
  const test::Route route = GENERATE(from_range(test::routes));
  check_uneven({.meshes = {test::mesh_of(1, 2, 2)},
                .policies = {"collective_matmul"},
                .change = [&](config::Config& config) { route.set(config.model); }});
}

TEST_CASE("uneven sequences: shared experts, micro batches and sharded optimizer state train as on one rank") {
  check_uneven({.meshes = {test::mesh_of(1, 1, 3), test::mesh_of(1, 2, 2)},
                .policies = {"collective_matmul", "lancet"},
                .change = [](config::Config& config) {
                  test::set_shared(config.model);
                  config.model.router_aux_loss_coef = 0;  // counts the tokens of a micro batch
                  config.train.micro_batch_size /= 2;
                  config.train.gradient_accumulation_steps = 2;
                  config.train.zero = 1;
                }});
}

TEST_CASE("uneven sequences: layers that drop nothing train as on one rank") {
  check_uneven({.meshes = {test::mesh_of(1, 2, 2)},
                .policies = {"sequential", "collective_matmul"},
                .change = [](config::Config& config) {
                  config.model.capacity_factor.reset();
                  config.model.dropless_imbalance = 0.5;  // several rounds
                }});
}

TEST_CASE("uneven sequences: steps in parts of the batch and of the slots train as on one rank") {
  check_uneven({.meshes = {test::mesh_of(1, 2, 2)},
                .policies = {"partition", "flowmoe", "lancet", "lancet_paper", "tutel", "comet"},
                .change = [](config::Config& config) { config.overlap.parts = 2; }});
}

TEST_CASE("uneven sequences: a run that measures its costs trains as one rank") {
  const test::TemporaryFolder folder;
  const Mesh mesh = test::mesh_of(1, 1, 3);
  config::Config config = uneven_on(mesh, true);
  config.overlap.policy = "collective_matmul";
  config.overlap.profile = folder / "costs.json";
  bool predicts = false;
  const test::Records found = test::run_steps(config, mesh.ranks(), 2, [&](train::Trainer& trainer, int rank) {
    if (rank == 0) predicts = trainer.executor().plan().header.has("predicted_ms");
  });
  const test::Records expected = test::run_steps(uneven_on({}, true), 1, 2);
  CHECK(predicts);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(1e-5));
    CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(1e-4));
  }
}

TEST_CASE("uneven sequences: runs resume bit for bit under every policy") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const test::CostsOfRings costs;
  const Mesh mesh = GENERATE(test::mesh_of(1, 2, 2), test::mesh_of(1, 1, 3));
  config::Config config = uneven_on(mesh, true);
  config.overlap.policy = GENERATE("sequential", "collective_matmul", "lancet");
  config.train.save_interval = 100;
  config.train.zero = 1;
  const auto whole = test::losses_of_run(config, folder / "whole", mesh.ranks(), 0, &costs);
  REQUIRE(whole.size() == 6);
  test::losses_of_run(config, folder / "stopped", mesh.ranks(), 3, &costs);
  CHECK(test::losses_of_run(config, folder / "stopped", mesh.ranks(), 0, &costs) == whole);
}

}  // namespace lancet
