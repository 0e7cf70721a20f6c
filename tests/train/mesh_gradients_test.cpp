// Every parameter's gradient on every mesh is that of one rank, from the same weights and the same route. The routes
// are checked to be equal in every layer, so no token that chose another expert can excuse a difference, and no route
// has to be replayed.
#include <catch2/catch.hpp>

#include "routers.h"
#include "train/observed_steps.h"

namespace lancet {
namespace {

using ir::Axis;
using ir::Mesh;
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

}  // namespace lancet
