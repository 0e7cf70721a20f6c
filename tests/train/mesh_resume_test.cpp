// Runs that are saved on one mesh resume on it bit for bit, and on others with the same losses, also where tensor
// splits weights and the vocabulary; ranks that hold the same shards stay equal.
#include <catch2/catch.hpp>
#include <filesystem>

#include "checkpoint/support.h"
#include "good.h"
#include "in_memory.h"
#include "temporary_folder.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using ir::Axis;
using ir::Mesh;
using test::losses_of_run;

// Six heads, so that tensor may be 2 or 3, and 67 tokens, which neither divides.
config::Config saved_on(const Mesh& mesh, int zero) {
  config::Config config = test::config_on(mesh);
  config.model.n_head = 6;
  config.model.n_embd = 48;
  config.train.save_interval = 100;
  config.train.zero = zero;
  return config;
}

const Mesh saving_meshes[] = {test::mesh_of(1, 1, 1), test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2),
                              test::mesh_of(1, 1, 3)};

std::vector<checkpoint::ShardFile> files_at_end(const std::string& run) {
  const auto opened =
      test::good(checkpoint::Checkpoint::open(std::filesystem::path(run) / "checkpoints" / checkpoint::folder_name(6)));
  REQUIRE(test::verify(*opened).ok());
  return opened->manifest().files;
}

}  // namespace

TEST_CASE("meshes: runs resume bit for bit where tensor splits weights") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const Mesh mesh = GENERATE(test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2), test::mesh_of(1, 1, 3));
  config::Config config = saved_on(mesh, GENERATE(0, 1));
  config.train.sequence_parallel = mesh[Axis::expert] > 1;
  if (mesh[Axis::tensor] == 2) test::set_shared(config.model);
  INFO(to_string(mesh) << ", train.zero " << config.train.zero);
  const auto whole = losses_of_run(config, folder / "whole", mesh.ranks(), 0);
  REQUIRE(whole.size() == 6);
  losses_of_run(config, folder / "stopped", mesh.ranks(), 3);
  CHECK(losses_of_run(config, folder / "stopped", mesh.ranks(), 0) == whole);
  CHECK(files_at_end(folder / "stopped") == files_at_end(folder / "whole"));
}

TEST_CASE("meshes: what is saved on one mesh resumes on another") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const auto whole = losses_of_run(saved_on({}, 0), folder / "whole", 1, 0);
  REQUIRE(whole.size() == 6);
  int zero = 0;
  for (std::size_t i = 0; i < std::size(saving_meshes); ++i) {
    const Mesh &from = saving_meshes[i], &to = saving_meshes[(i + 1) % std::size(saving_meshes)];
    zero = 1 - zero;
    INFO("from " << to_string(from) << " to " << to_string(to) << ", train.zero " << zero << " at first");
    const std::string run = folder / (to_string(from) + " to " + to_string(to));
    losses_of_run(saved_on(from, zero), run, from.ranks(), 3);
    const auto moved = losses_of_run(saved_on(to, 1 - zero), run, to.ranks(), 0);
    REQUIRE(moved.size() == 6);
    for (std::size_t step = 0; step < 6; ++step) CHECK(moved[step] == Approx(whole[step]).epsilon(1e-5));
  }
}

TEST_CASE("meshes: a step keeps its sequences where the config says nothing new about them") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  config::Config config = saved_on({}, 0);
  config.train.micro_batch_size = GENERATE(8, 2);  // on each of four ranks, 2 would not divide
  config.model.router_group_size = 1;
  INFO(config.train.micro_batch_size << " sequences");
  const auto whole = losses_of_run(config, folder / "whole", 1, 0);
  REQUIRE(whole.size() == 6);
  losses_of_run(config, folder / "run", 1, 3);
  config.mesh.expert = 2;
  config.mesh.tensor = 2;
  const auto moved = losses_of_run(config, folder / "run", 4, 0);
  REQUIRE(moved.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(moved[i] == Approx(whole[i]).epsilon(1e-5));
}

TEST_CASE("meshes: a checkpoint of another model is refused where tensor splits weights") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const Mesh mesh = test::mesh_of(2, 1, 2);
  config::Config config = saved_on(mesh, 0);
  losses_of_run(config, folder / "run", 4, 3);
  config.log.run_dir = folder / "run";
  config.model.n_embd = 96;
  std::vector<Error> errors(4);
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, {.local_ranks = 4});
    if (!mine.ok()) errors[std::size_t(world.rank())] = mine.error();
    return {};
  }));
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::config);
    CHECK(error.agreed);
    CHECK(error.message.ends_with("model.n_embd: expected 48, found 96; model.n_inner: expected 192, found 384"));
    CHECK(error.message.find('\n') == std::string::npos);
  }
}

TEST_CASE("meshes: ranks that hold the same shards stay equal, bit for bit, where tensor splits the others") {
  config::Config config = test::config_on(test::mesh_of(2, 2, 2));
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.train.master_weights = GENERATE(true, false);  // bf16 without masters: rounded stochastically
  config.train.sequence_parallel = GENERATE(false, true);
  const test::Ran ran = test::run_of(config, 8, 5);
  for (const auto& held : {ran.parameters, ran.states})
    for (std::size_t rank = 0; rank < 4; ++rank) CHECK(held[rank] == held[rank + 4]);  // along data
  const std::vector<test::Tensors>& of_rank = ran.parameters;
  for (const char* whole : {"wpe.weight", "h.0.ln_2.weight", "h.0.moe.gate.weight", "h.1.mlp.c_proj.bias"})
    for (std::size_t rank = 1; rank < 4; ++rank) CHECK(of_rank[rank].at(whole) == of_rank[0].at(whole));
  for (const char* split : {"wte.weight", "h.0.attn.c_attn.weight", "h.1.mlp.c_proj.weight"}) {
    CHECK(of_rank[0].at(split) != of_rank[1].at(split));  // along tensor
    CHECK(of_rank[0].at(split) == of_rank[2].at(split));  // along expert
  }
  const std::string bias = "h.0.moe.experts.c_proj.bias";  // split over expert alone
  CHECK(of_rank[0].at(bias) == of_rank[1].at(bias));
  CHECK(of_rank[0].at(bias) != of_rank[2].at(bias));
}

}  // namespace lancet
