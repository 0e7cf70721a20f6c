// Every mesh trains like one rank: the same losses, norms and drops, also where tensor splits weights, sequences and
// the vocabulary.
#include <catch2/catch.hpp>

#include "routers.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using ir::Axis;
using ir::Mesh;
using test::check_records;
using test::config_on;
using test::Records;

constexpr int loss_steps = 5;

// Trains on all meshes that have a tensor axis of at least `tensor`. The optimizer's state is whole on every second
// mesh, sharded on the others; `zero` says which on the first.
void check_meshes(config::Config alone, int least_tensor = 1, int zero = 0) {
  const Records expected = test::run_steps(alone, 1, loss_steps);
  CHECK((expected[0].drop_pct.value() > 0) == !alone.model.experts_choose());
  CHECK(expected[0].grad_norm > alone.train.clip_grad);
  for (const Mesh& mesh : test::meshes) {
    if (mesh[Axis::tensor] < least_tensor) continue;
    const config::Config there = config_on(mesh);
    config::Config config = alone;
    config.mesh = there.mesh;
    config.train.micro_batch_size = there.train.micro_batch_size;
    config.train.zero = zero;
    zero = 1 - zero;
    INFO(to_string(mesh) << ", train.zero " << config.train.zero);
    check_records(test::run_steps(config, mesh.ranks(), loss_steps), expected, 1e-5);
  }
}

}  // namespace

TEST_CASE("meshes: steps by every router on every mesh are those of one rank") {
  config::Config alone = test::mesh_config(1);
  const int router = GENERATE(range(0, int(test::routes.size())));
  test::routes[std::size_t(router)].set(alone.model);
  check_meshes(alone, 1, router % 2);
}

TEST_CASE("meshes: shared and narrow experts behind a dense block train as on one rank") {
  config::Config alone = test::mesh_config(1);
  test::set_shared(alone.model);
  alone.train.sequence_parallel = GENERATE(false, true);
  check_meshes(alone, alone.train.sequence_parallel ? 2 : 1);
}

TEST_CASE("meshes: a vocabulary that fills no shard of a mesh trains as on one rank") {
  config::Config alone = test::mesh_config(1);
  alone.model.vocab_size = 8191;
  check_meshes(alone);
}

TEST_CASE("meshes: sequences that tensor splits train as on one rank") {
  config::Config alone = test::mesh_config(1);
  alone.train.sequence_parallel = true;
  check_meshes(alone, 2);
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

TEST_CASE("meshes: dense models train on every mesh without experts as on one rank") {
  config::Config alone = test::mesh_config(1);
  alone.model.moe_layer_freq = 0;
  alone.model.num_local_experts.reset();
  alone.train.sequence_parallel = GENERATE(false, true);
  const Records expected = test::run_steps(alone, 1, loss_steps);
  for (const Mesh& mesh : test::meshes) {
    if (mesh[Axis::expert] > 1) continue;
    config::Config config = alone;
    config.mesh.data = mesh[Axis::data];
    config.mesh.tensor = mesh[Axis::tensor];
    config.train.micro_batch_size = test::step_rows / mesh[Axis::data];
    config.train.zero = mesh[Axis::data] > 1;
    INFO(to_string(mesh));
    const Records found = test::run_steps(config, mesh.ranks(), loss_steps);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(found[i].loss == Approx(expected[i].loss).epsilon(1e-5));
      CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(1e-4));
    }
  }
}

TEST_CASE("meshes: micro batches on every mesh add up to the step of one rank") {
  config::Config alone = test::mesh_config(1);
  alone.model.router_group_size = 1;
  alone.model.router_aux_loss_coef = 0;  // counts the tokens of a micro batch
  alone.train.sequence_parallel = GENERATE(false, true);
  const Records expected = test::run_steps(alone, 1, loss_steps);
  CHECK(expected[0].grad_norm > alone.train.clip_grad);
  int zero = alone.train.sequence_parallel;
  for (const Mesh& mesh : test::meshes) {
    config::Config config = alone;
    config.mesh = config_on(mesh).mesh;
    config.train.micro_batch_size = config_on(mesh).train.micro_batch_size / 2;
    config.train.gradient_accumulation_steps = 2;
    config.train.zero = zero;
    zero = 1 - zero;
    INFO(to_string(mesh) << ", train.zero " << config.train.zero << ", sequences split "
                         << config.train.sequence_parallel);
    const Records found = test::run_steps(config, mesh.ranks(), loss_steps);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(found[i].loss == Approx(expected[i].loss).epsilon(1e-5));
      CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(1e-4));
    }
  }
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
