// Training on meshes gives the losses of one rank, and every policy plans and trains on them.
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "declared_hardware.h"
#include "good.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/ir/plan.h"
#include "lancet/models/loaded_model.h"
#include "lancet/planner/from_config.h"
#include "lancet/planner/planner.h"
#include "lancet/run/planned_step.h"
#include "lancet/run/step_costs.h"
#include "routers.h"
#include "temporary_folder.h"
#include "train/meshes.h"
#include "train/observed_steps.h"

namespace lancet {
namespace {

using test::check_records;
using test::losses_of_run;
using test::mesh_config;
using test::Records;

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
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2}));
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(0));
    if (world.rank() != 0) return {};
    ran = ir::print(trainer->executor().plan());
    CHECK(record.predicted_ms.value() > 0);
    CHECK(record.a2a_ms > 0);
    return {};
  }));
  CHECK(ran.find("axes=expert") != ran.npos);
  CHECK(ran.find("axes=" + beside) != ran.npos);
  CHECK(ran.find(beside == "data" ? "data 2 x expert 2" : "expert 2 x tensor 2") != ran.npos);
  const auto planned = test::good(run::plan_offline(config, {.ranks = 4, .hosts = 2}));
  CHECK(ir::print(planned->plan) == ran);
}

TEST_CASE("meshes: the profiler measures the groups that plans name, and lacks them on another mesh") {
  const test::TemporaryFolder folder;
  config::Config config = mesh_of_four(2);
  config.overlap.profile = folder / "costs.json";
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto step, run::measure_step(config, world, {.local_ranks = 4, .seconds = 0}));
    if (world.rank() != 0) return {};
    CHECK(step.profile.network.groups.size() == 2);
    CHECK(step.profile.network.groups.contains("data 2 / 2"));
    CHECK(step.profile.network.groups.contains("expert 2"));
    CHECK(cost::op_costs(step.profile, step.programs[0]).ok());
    return {};
  }));
  const auto read = test::good(cost::read_profile(config.overlap.profile));
  const run::PlanTarget target{.ranks = 4, .hosts = 1, .profile = config.overlap.profile};
  const auto planned = test::good(run::plan_offline(config, target));
  cost::Profile without = *read;
  without.network.groups.clear();
  folder.write("costs.json", cost::print(without));
  const Error refused = test::refused(run::plan_offline(config, target));
  CHECK(refused.message.find("collectives over the mesh's axes expert") != std::string::npos);
}

namespace {

using ir::Mesh;
using test::config_on;

}  // namespace

// Each policy on eight ranks along all axes, which have one of three ways to hold a step: with the optimizer's state
// whole or sharded, and in two micro batches whose sequences tensor splits. What such plans train, tests/mixes holds.
TEST_CASE("mesh plans: every policy makes one that runs on all ranks without a deadlock") {
  const Mesh mesh = test::mesh_of(2, 2, 2);
  const test::DeclaredCosts costs;
  const std::vector<planner::PolicyInfo> policies = planner::policies();
  for (int i = 0; i < int(policies.size()); ++i) {
    config::Config config = config_on(mesh);
    config.train.zero = i % 3 > 0;
    config.train.sequence_parallel = i % 3 == 2;
    config.train.gradient_accumulation_steps = 1 + config.train.sequence_parallel;
    config.overlap.policy = policies[std::size_t(i)].name;
    INFO(config.overlap.policy);
    const auto plan = test::good(planner::plan_step({config, mesh.ranks()}, {.costs = &costs}));
    const std::vector<const ir::Plan*> plans(std::size_t(mesh.ranks()), &*plan);
    const Status status = ir::verify_ranks(plans, mesh);
    if (!status.ok()) FAIL_CHECK(status.error().message);
  }
}

// Meshes train like one rank: the same losses, norms and drops. tests/mixes holds the mixes of models and meshes.

namespace {

using ir::Axis;

constexpr int loss_steps = 5;

}  // namespace

TEST_CASE("meshes: steps by every router are those of one rank") {
  const std::size_t router = GENERATE(range(std::size_t(0), test::routes.size()));
  config::Config alone = test::mesh_config(1);
  test::routes[router].set(alone.model);
  const Records expected = test::run_steps(alone, 1, loss_steps);
  CHECK((expected[0].drop_pct.value() > 0) == !alone.model.experts_choose());
  CHECK(expected[0].grad_norm > alone.train.clip_grad);
  const Mesh& mesh = test::meshes[router % test::meshes.size()];
  config::Config config = test::moved_to(mesh, alone);
  config.train.zero = router % 2;
  INFO(to_string(mesh) << ", train.zero " << config.train.zero);
  check_records(test::run_steps(config, mesh.ranks(), loss_steps), expected, 1e-5);
}

TEST_CASE("meshes: steps of every family are those of one rank") {
  const std::string family(GENERATE(from_range(config::family_names().subspan(1))));
  config::Config alone = test::mesh_config(1);
  test::set_family(alone.model, family);
  alone.model.num_experts_per_tok = 2;
  const bool drops = GENERATE(true, false);
  if (!drops && !alone.model.has_moe()) return;
  if (!drops) alone.model.capacity_factor.reset();
  const Records expected = test::run_steps(alone, 1, loss_steps);
  for (const Mesh& mesh :
       {test::mesh_of(4, 1, 1), test::mesh_of(2, 2, 1), test::mesh_of(1, 2, 2), test::mesh_of(1, 1, 2)}) {
    if (mesh[Axis::expert] > 1 && !alone.model.has_moe()) continue;
    config::Config config = test::moved_to(mesh, alone);
    config.train.zero = mesh[Axis::data] > 1;
    config.train.sequence_parallel = mesh[Axis::tensor] > 1 && drops;
    INFO(family << " on " << to_string(mesh) << (drops ? "" : ", without drops"));
    check_records(test::run_steps(config, mesh.ranks(), loss_steps), expected, 1e-5);
  }
  config::Config stages = alone;
  stages.mesh.stage = 2;
  INFO(family << " in two stages");
  check_records(test::run_steps(stages, 2, loss_steps), expected, 1e-5);
}

TEST_CASE("meshes: bf16 trains alike on every mesh") {
  config::Config alone = test::mesh_config(1);
  alone.train.dtype = DType::bf16;
  alone.train.master_weights = GENERATE(true, false);
  const Records expected = test::run_steps(alone, 1, loss_steps);
  for (const Mesh& mesh : test::meshes) {
    config::Config config = alone;
    config.mesh = config_on(mesh).mesh;
    config.train.micro_batch_size = config_on(mesh).train.micro_batch_size;
    INFO(to_string(mesh) << ", master weights " << config.train.master_weights);
    const Records found = test::run_steps(config, mesh.ranks(), loss_steps);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(found[i].loss == Approx(expected[i].loss).epsilon(5e-3));
  }
}

// Every parameter's gradient on every mesh is that of one rank, from the same weights and the same route. The routes
// are checked to be equal in every layer, so no token that chose another expert can excuse a difference, and no route
// has to be replayed.

namespace {

using test::LayerRoute;
using test::ObservedStep;
using test::Weights;

// Of the largest element of a parameter's gradient. Rounding came to 3e-6 with the larger vocabulary, else to 1e-6.
constexpr double gradient_tolerance = 2e-5;

void check_gradients_alike(const ObservedStep& step, const ObservedStep& alone, const Mesh& mesh) {
  for (const auto& [layer, expected] : alone[0].routes) {
    INFO(layer);
    const LayerRoute found = test::whole_route(step, mesh, layer);
    REQUIRE(found.expert == expected.expert);
    REQUIRE(found.slot == expected.slot);
    CHECK(std::ranges::count(expected.slot, -1) > 0);
  }
  for (const auto& [name, expected] : alone[0].gradients) {
    INFO(name);
    CHECK(test::relative_error(step, name, expected.values) < gradient_tolerance);
  }
}

// The gradients of the first step, and of one with the weights that one rank has after others.
void check_gradients_on(std::span<const Mesh> meshes, const config::Config& alone) {
  constexpr int trained_steps = 4;
  Weights trained;
  const auto expected =
      test::observe_steps(alone, 1, trained_steps + 1, [&](train::Trainer& trainer, int step) -> Status {
        if (step == trained_steps) trained = test::weights_of(trainer.store());
        return {};
      });
  CHECK(expected[0][0].gradients.size() == trained.size());  // of every parameter
  for (const Mesh& mesh : meshes)
    for (const int zero : {0, 1}) {
      if (zero && mesh.size(ir::batch_axes) == 1) continue;  // nothing to divide
      config::Config config = test::moved_to(mesh, alone);
      config.train.zero = zero;
      INFO(to_string(mesh) << ", train.zero " << zero << ", sequences split " << config.train.sequence_parallel);
      const auto found =
          test::observe_steps(config, mesh.ranks(), trained_steps + 1, [&](train::Trainer& trainer, int step) {
            return step == trained_steps ? test::set_weights(trainer.store(), trained) : Status();
          });
      const char* replicated = "h.0.moe.gate.weight";  // ZeRO-1 divides what all ranks hold
      const auto share = found[0][0].gradients.at(replicated).values.size();
      CHECK((share < expected[0][0].gradients.at(replicated).values.size()) == (zero == 1));
      check_gradients_alike(found.front(), expected.front(), mesh);
      check_gradients_alike(found.back(), expected.back(), mesh);
    }
}

}  // namespace

TEST_CASE("meshes: the gradients of all parameters are those of one rank under the same route") {
  config::Config alone = test::mesh_config(1);
  alone.model.router = GENERATE(from_range(test::top_1_routers));
  check_gradients_on(test::meshes, alone);
}

TEST_CASE("meshes: gradients are those of one rank where tensor splits sequences") {
  config::Config alone = test::mesh_config(1);
  alone.train.sequence_parallel = true;
  std::vector<Mesh> meshes;
  for (const Mesh& mesh : test::meshes)
    if (mesh[Axis::tensor] > 1) meshes.push_back(mesh);
  check_gradients_on(meshes, alone);
}

TEST_CASE("meshes: gradients are those of one rank where a vocabulary fills no shard") {
  config::Config alone = test::mesh_config(1);
  alone.model.vocab_size = 8191;
  check_gradients_on(test::meshes, alone);
}

TEST_CASE("meshes: micro batches are the same sequences on every mesh, and so are their balancing losses") {
  config::Config alone = test::mesh_config(1);
  alone.model.router_group_size = 1;
  alone.model.router_aux_loss_coef = 1;
  alone.model.router_aux_loss_scope = config::AuxLossScope::global;
  alone.train.gradient_accumulation_steps = 2;
  alone.train.micro_batch_size /= 2;
  const Records expected = test::run_steps(alone, 1, loss_steps);
  for (const Mesh& mesh : {test::mesh_of(2, 2, 1), test::mesh_of(1, 2, 2)}) {
    INFO(to_string(mesh));
    config::Config config = alone;
    config.mesh = config_on(mesh).mesh;
    config.train.micro_batch_size = config_on(mesh).train.micro_batch_size / 2;
    const Records found = test::run_steps(config, mesh.ranks(), loss_steps);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(found[i].aux_loss == Approx(expected[i].aux_loss).epsilon(1e-5));
      CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(1e-4));
    }
  }
}

}  // namespace lancet
