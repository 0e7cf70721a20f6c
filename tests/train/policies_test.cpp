// Every policy trains like `sequential`: the mathematics is unchanged (Lancet, sections 4 and 5; rule 1).
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "declared_costs.h"
#include "lancet/ops/catalogue.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/step.h"
#include "routers.h"
#include "train/support.h"

namespace lancet {
namespace {

using test::Ran;

Ran train_run(const config::Config& config, int ranks, int steps, const cost::Costs& costs) {
  return test::run_of(config, ranks, steps, {.costs = &costs, .inspect = true});
}

// Routing and drops are equal; sums over rows may have another order.
void check_alike(const Ran& found, const Ran& expected, double epsilon = 1e-6) {
  REQUIRE(found.records.size() == expected.records.size());
  for (std::size_t i = 0; i < expected.records.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(found.records[i].loss == Approx(expected.records[i].loss).epsilon(epsilon));
    if (epsilon > 1e-5) continue;
    CHECK(found.records[i].drop_pct.value() == expected.records[i].drop_pct.value());
    CHECK(found.records[i].load_max_over_mean.value() == expected.records[i].load_max_over_mean.value());
    CHECK(found.records[i].router_entropy.value() == Approx(expected.records[i].router_entropy.value()).epsilon(1e-5));
  }
  if (epsilon > 1e-5) return;
  REQUIRE(!expected.routes[0].empty());
  CHECK(found.routes == expected.routes);
}

// The plan that ran is the policy's own. auto has none, nor has collective_matmul, whose rings need ranks along tensor
// (collective_matmul_test.cpp).
void check_own_plan(const Ran& found, std::string_view policy) {
  INFO(policy << " ran " << found.policy() << ", " << found.plan.program.instructions.size() << " instructions");
  if (policy == "auto")
    CHECK(found.policy() != "sequential");
  else
    CHECK(found.policy() == (policy == "collective_matmul" ? "sequential" : policy));
}

config::Config config_of(const test::Route& route, double capacity_factor) {
  config::Config config = test::small_config();
  route.set(config.model);
  config.model.capacity_factor = capacity_factor;
  config.model.router_aux_loss_coef = 0.02;
  config.train.clip_grad = 0;
  config.overlap.memory_factor = 10;  // parts of a model as small as this one need more memory than the whole
  return config;
}

}  // namespace

// Each router with dw and one or two other policies; every second router drops tokens. tests/mixes holds their mixes.
TEST_CASE("every policy trains like sequential") {
  const std::size_t router = GENERATE(range(std::size_t(0), test::routes.size()));
  auto config = config_of(test::routes[router], router % 2 ? 0.75 : 2.0);
  const test::DeclaredCosts costs;
  const Ran expected = train_run(config, 2, 5, costs);
  REQUIRE(expected.policy() == "sequential");
  const std::vector<planner::PolicyInfo> policies = planner::policies();
  for (std::size_t i = 1; i < policies.size(); ++i) {
    const std::string_view policy = policies[i].name;
    if (policy != "dw" && i % test::routes.size() != router) continue;
    config.overlap.policy = policy;
    const Ran found = train_run(config, 2, 5, costs);
    INFO(policy << " with router " << router);
    check_own_plan(found, policy);
    check_alike(found, expected);
    if (policy == "dw") CHECK(found.parameters == expected.parameters);  // bit for bit: only the order differs
  }
}

// Each router with a policy and a number of parts; drops alternate.
TEST_CASE("any number of parts trains like the whole") {
  const int router = GENERATE(range(0, int(test::routes.size())));
  auto config = config_of(test::routes[std::size_t(router)], router % 2 ? 0.75 : 2.0);
  const test::DeclaredCosts costs;
  const Ran expected = train_run(config, 2, 5, costs);
  const char* policy = std::array{"tutel", "partition", "lancet"}[std::size_t(router % 3)];
  const int parts = 1 << router % 4;
  config.overlap.policy = policy;
  config.overlap.parts = parts;
  const Ran found = train_run(config, 2, 5, costs);
  INFO(policy << " in " << parts << " parts");
  CHECK(schedule::most_parts(found.plan.program) == parts);
  check_alike(found, expected);
}

TEST_CASE("groups of peers on four ranks train like the whole") {
  auto config = config_of({config::Router::switch_top1}, 0.75);
  const test::DeclaredCosts costs;
  const Ran expected = train_run(config, 4, 5, costs);
  config.overlap.policy = "fastermoe";
  for (int groups : {2, 4}) {
    config.overlap.parts = groups;
    const Ran found = train_run(config, 4, 5, costs);
    INFO(groups << " groups");
    CHECK(found.policy() == "fastermoe");
    CHECK(schedule::most_parts(found.plan.program) == groups);
    check_alike(found, expected);
  }
}

TEST_CASE("comet's tiles on one, two and four ranks train like the whole") {
  const int ranks = GENERATE(1, 2, 4);
  auto config = config_of({config::Router::top_k, 2, true}, 0.75);
  const test::DeclaredCosts costs;
  const Ran expected = train_run(config, ranks, 5, costs);
  config.overlap.policy = "comet";
  for (int parts : {2, 4}) {
    config.overlap.parts = parts;
    const Ran found = train_run(config, ranks, 5, costs);
    INFO(ranks << " ranks, " << parts << " tiles");
    CHECK(found.policy() == (ranks == 1 ? "sequential" : "comet"));
    CHECK(schedule::most_parts(found.plan.program) == (ranks == 1 ? 1 : parts));
    CHECK(double(found.plan.arena_bytes) <= 1.05 * double(expected.plan.arena_bytes));
    check_alike(found, expected);
  }
}

TEST_CASE("under every policy a late rank and ranks without tokens change no value") {
  auto config = config_of({config::Router::top_k, 1}, 2.0);
  const test::DeclaredCosts costs;
  test::RunOptions around{.costs = &costs, .inspect = true};
  // All tokens go to the first expert: its rank gets all that find a slot, the others' experts get none.
  SECTION("experts of three ranks get no tokens") {
    around.prepare = [](train::Trainer& trainer, int) {
      for (const auto& [name, tensor] : trainer.store().all()) {
        const bool gate = name.ends_with("moe.gate.weight"), bias = name.ends_with("ln_2.bias");
        const std::int64_t n = gate || bias ? tensor.type.shape.elements() : 0, width = tensor.type.shape.back();
        for (std::int64_t i = 0; i < n; ++i) tensor.memory.as<float>()[i] = bias || i < width ? 1.f : 0.f;
      }
    };
  }
  SECTION("two micro batches, with memory for pairs") {
    config.train.gradient_accumulation_steps = 2;
    config.overlap.memory_factor = 3;
  }
  const Ran expected = test::run_of(config, 4, 4, around);
  test::RunOptions with_late = around;
  with_late.before = [](int rank, int step) {
    if (rank == step % 4) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  for (const auto& [policy, what, cuts] : planner::policies()) {
    if (policy == "sequential" || policy == "auto") continue;  // auto runs the plan of one of the others
    config.overlap.policy = policy;
    config.overlap.parts = policy == "comet" ? 4 : 0;  // else no tile pays here
    const Ran found = test::run_of(config, 4, 4, around);
    INFO(policy);
    check_own_plan(found, policy);
    check_alike(found, expected);
    const Ran late = test::run_of(config, 4, 4, with_late);
    for (std::size_t i = 0; i < found.records.size(); ++i) CHECK(late.records[i].loss == found.records[i].loss);
    CHECK(late.parameters == found.parameters);
    CHECK(late.routes == found.routes);
  }
}

TEST_CASE("four ranks, bf16 and micro batches under lancet") {
  auto config = config_of({config::Router::switch_top1}, 1.25);
  const test::DeclaredCosts costs;
  int ranks = 4;
  SECTION("four ranks") {}
  SECTION("bf16") {
    ranks = 2;
    config.train.dtype = DType::bf16;
  }
  SECTION("two micro batches, whose loads add up") {
    ranks = 2;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
    config.train.gradient_accumulation_steps = 2;
  }
  SECTION("clipped, the auxiliary loss over all ranks") {
    config.train.clip_grad = 1;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
  }
  const Ran expected = train_run(config, ranks, 5, costs);
  config.overlap.policy = "lancet";
  const Ran found = train_run(config, ranks, 5, costs);
  CHECK(found.policy() == "lancet");
  check_alike(found, expected, config.train.dtype == DType::bf16 ? 1e-3 : 1e-6);
}

TEST_CASE("the auxiliary loss of each group under policies that split the backward pass") {
  for (const test::Route& route : {test::Route{config::Router::top_k, 2}, test::Route{config::Router::sigmoid, 2}}) {
    auto config = config_of(route, 1.25);
    config.model.router_aux_loss_scope = config::AuxLossScope::group;
    config.model.router_aux_loss_coef = 0.1;
    config.model.router_group_size = 1;
    config.overlap.parts = 2;
    const test::DeclaredCosts costs;
    const Ran expected = train_run(config, 2, 5, costs);
    for (const char* policy : {"flowmoe", "lancet"}) {
      config.overlap.policy = policy;
      const Ran found = train_run(config, 2, 5, costs);
      CHECK(found.policy() == policy);
      CHECK(schedule::most_parts(found.plan.program) > 1);
      check_alike(found, expected, 1e-6);
    }
  }
}

}  // namespace lancet
