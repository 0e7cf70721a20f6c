// Every policy plans every router where each block has experts, so that what chooses a layer's experts can be in the
// pipeline of the layer before. The number of groups around a layer changes from pair to pair.
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/planner/planner.h"
#include "routers.h"
#include "small_model.h"

using namespace lancet;

TEST_CASE("every policy plans every router where all blocks have experts") {
  const std::size_t router = GENERATE(range(std::size_t(0), test::routes.size()));
  const test::Route& route = test::routes[router];
  config::Model m = test::small_model();
  m.moe_layer_freq = 1;
  route.set(m);
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 40;
  planner::PlanRequest request;
  request.mesh = request.optimizer.mesh = ir::of_experts(2);
  request.costs = &costs;
  const ir::Program forward =
      model::build_forward(m.on(request.mesh), {.batch = 16, .sequence = 16, .groups = 2, .loads = 2});
  constexpr std::int64_t groups[] = {3, 8, 20};
  std::size_t number = router;
  for (const auto& [policy, what, cuts] : planner::policies()) {
    request.overlap.groups_per_moe = groups[number++ % 3];
    INFO(name(route.router) << ", " << policy << ", " << request.overlap.groups_per_moe << " groups");
    request.overlap.policy = policy;
    const auto plan = planner::make_plan(forward, request);
    REQUIRE(plan.ok());
    CHECK(plan->header.real("predicted_ms") > 0);
  }
}
