// Training on meshes: experts over `expert` with replicas over `data` give the losses of one rank.
#include <catch2/catch.hpp>
#include <filesystem>

#include "declared_hardware.h"
#include "in_memory.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/ir/plan.h"
#include "lancet/models/loaded_model.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/planned_step.h"
#include "lancet/run/step_costs.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using test::check_records;
using test::losses_of_run;
using test::mesh_config;
using test::Records;
using test::Tensors;
using test::train_and_look;

// On four ranks, for expert 1, 2 and 4.
config::Config mesh_of_four(int expert) {
  config::Config config = mesh_config(4);
  config.mesh.expert = expert;
  return config;
}

}  // namespace

TEST_CASE("meshes: three ranks train like one although they do not divide the experts") {
  config::Config alone = mesh_config(1), config = mesh_config(3);
  alone.train.micro_batch_size = 6;
  config.train.micro_batch_size = 2;
  check_records(test::run_steps(config, 3, 10), test::run_steps(alone, 1, 10), 1e-5);
}

TEST_CASE("meshes: ranks that own the same experts stay equal, bit for bit") {
  config::Config config = mesh_of_four(2);
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.train.master_weights = GENERATE(true, false);  // bf16 without masters: rounded stochastically
  const std::vector<Tensors> of_rank = train_and_look(config, 4, 5);
  CHECK(of_rank[0] == of_rank[2]);
  CHECK(of_rank[1] == of_rank[3]);
  const std::string expert = "h.0.moe.experts.c_fc.weight";
  CHECK(of_rank[0].at(expert) != of_rank[1].at(expert));
  CHECK(of_rank[0].at("wte.weight") == of_rank[1].at("wte.weight"));
}

TEST_CASE("meshes: initial values are those of one rank") {
  const std::string name = "h.0.moe.experts.c_fc.weight";
  const std::vector<std::byte> whole = train_and_look(mesh_config(1), 1, 0)[0].at(name);
  const std::vector<Tensors> of_rank = train_and_look(mesh_of_four(2), 4, 0);
  for (int rank = 0; rank < 4; ++rank) {
    const auto half = whole.begin() + std::ptrdiff_t(whole.size() / 2) * (rank % 2);
    const std::vector<std::byte> expected(half, half + std::ptrdiff_t(whole.size() / 2));
    CHECK(of_rank[std::size_t(rank)].at(name) == expected);
  }
}

TEST_CASE("meshes: a run resumes on the same mesh bit for bit, and on any other with the same losses") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  config::Config config = mesh_of_four(2);
  config.model.router_aux_loss_coef = 0;  // two ranks count the tokens of micro batches
  config.train.save_interval = 100;
  const auto whole = losses_of_run(config, folder / "whole", 4, 0);
  REQUIRE(whole.size() == 6);
  const auto files_of = [](const std::string& run) {
    const auto opened =
        checkpoint::Checkpoint::open(std::filesystem::path(run) / "checkpoints" / checkpoint::folder_name(6));
    REQUIRE(opened.ok());
    return opened->manifest().files;
  };
  losses_of_run(config, folder / "same", 4, 3);
  CHECK(losses_of_run(config, folder / "same", 4, 0) == whole);
  CHECK(files_of(folder / "same") == files_of(folder / "whole"));
  for (const int expert : {1, 4, 0}) {  // 0: on two ranks
    const std::string run = folder / ("moved" + std::to_string(expert));
    losses_of_run(config, run, 4, 3);
    config::Config other = expert > 0 ? mesh_of_four(expert) : mesh_config(4);
    other.model.router_aux_loss_coef = 0;
    const auto moved = losses_of_run(other, run, expert > 0 ? 4 : 2, 0);
    INFO("expert " << expert);
    REQUIRE(moved.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(moved[i] == Approx(whole[i]).epsilon(i < 3 ? 1e-12 : 1e-5));
  }
}

TEST_CASE("meshes: each expert is written once") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  config::Config config = mesh_of_four(2);
  config.train.save_interval = 100;
  config.train.steps = 1;
  losses_of_run(config, folder / "run", 4, 0);
  config::Config alone = mesh_config(1);
  alone.train.save_interval = 100;
  alone.train.steps = 1;
  losses_of_run(alone, folder / "alone", 1, 0);
  const auto names_of = [&](const char* run) {
    const auto opened =
        checkpoint::Checkpoint::open(std::filesystem::path(folder / run) / "checkpoints" / checkpoint::folder_name(1));
    REQUIRE(opened.ok());
    std::vector<std::string> names = opened->names();
    std::ranges::sort(names);
    CHECK(std::ranges::adjacent_find(names) == names.end());
    for (const auto& file : opened->manifest().files) CHECK(file.bytes > 0);
    return names;
  };
  CHECK(names_of("run") == names_of("alone"));
}

TEST_CASE("meshes: emulated devices run the plan of a mesh, and lancet plan predicts the same plan") {
  const test::TemporaryFolder folder;
  const std::string beside = GENERATE("data", "tensor");  // expert
  config::Config config = beside == "data" ? mesh_of_four(2) : test::config_on(test::mesh_of(1, 2, 2));
  config.device = config::Device::emulated;
  config.emulated.hardware = folder.write("declared.json", test::declared_hardware({.latency_us = 1000}));
  config.emulated.scale = 1;
  config.emulated.dilation = 2;
  config.overlap.policy = "lancet";
  std::string ran;
  const Status status = comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2}));
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(0));
    if (world.rank() != 0) return {};
    ran = ir::print(trainer->executor().plan());
    CHECK(record.predicted_ms.value() > 0);
    CHECK(record.a2a_ms > 0);
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  CHECK(ran.find("axes=expert") != ran.npos);
  CHECK(ran.find("axes=" + beside) != ran.npos);
  CHECK(ran.find(beside == "data" ? "data 2 x expert 2" : "expert 2 x tensor 2") != ran.npos);
  const auto planned = run::plan_offline(config, {.ranks = 4, .hosts = 2});
  if (!planned.ok()) FAIL(planned.error().message);
  CHECK(ir::print(planned->plan) == ran);
}

TEST_CASE("meshes: a plan of one mesh is refused on another") {
  const test::TemporaryFolder folder;
  const std::string hardware = folder.write("declared.json", test::declared_hardware({.latency_us = 1000}));
  const config::Config config = mesh_of_four(2);
  const auto planned = run::plan_offline(config, {.ranks = 4, .hosts = 2, .hardware = hardware});
  if (!planned.ok()) FAIL(planned.error().message);
  const std::string file = folder.write("plan.ir", ir::print(planned->plan));
  CHECK(planner::read_plan(file, {config, 4}).ok());
  const auto refused = planner::read_plan(file, {mesh_of_four(4), 4});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.ends_with("mesh: expected a plan of the mesh expert 4, found data 2 x expert 2"));
}

TEST_CASE("meshes: the profiler measures the groups that plans name, and lacks them on another mesh") {
  const test::TemporaryFolder folder;
  config::Config config = mesh_of_four(2);
  config.overlap.profile = folder / "costs.json";
  const Status status = comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto step, run::measure_step(config, world, {.local_ranks = 4, .seconds = 0}));
    if (world.rank() != 0) return {};
    CHECK(step.profile.network.groups.size() == 2);
    CHECK(step.profile.network.groups.contains("data 2 / 2"));
    CHECK(step.profile.network.groups.contains("expert 2"));
    CHECK(cost::op_costs(step.profile, step.programs[0]).ok());
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  const auto read = cost::read_profile(config.overlap.profile);
  REQUIRE(read.ok());
  const run::PlanTarget target{.ranks = 4, .hosts = 1, .profile = config.overlap.profile};
  const auto planned = run::plan_offline(config, target);
  if (!planned.ok()) FAIL(planned.error().message);
  cost::Profile without = *read;
  without.network.groups.clear();
  folder.write("costs.json", cost::print(without));
  const auto refused = run::plan_offline(config, target);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find("collectives over the mesh's axes expert") != std::string::npos);
}

TEST_CASE("meshes: a saved model is loaded on ranks that do not divide its experts") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  config::Config config = mesh_of_four(2);
  config.train.save_interval = 100;
  config.train.steps = 1;
  losses_of_run(config, folder / "run", 4, 0);
  for (const int ranks : {1, 3, 4}) {
    const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
      LANCET_ASSIGN(const auto loaded,
                    models::LoadedModel::load(folder / "run", world, {.local_ranks = ranks, .dtype = {}}));
      const config::Config& found = loaded->config();
      return config::check(found, ranks);
    });
    INFO(ranks);
    CHECK(status.ok());
  }
}

}  // namespace lancet
