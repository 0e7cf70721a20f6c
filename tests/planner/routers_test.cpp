// Every policy plans every router where each block has experts, so that what chooses a layer's experts can be in the
// pipeline of the layer before. The number of groups around a layer changes from pair to pair.
#include <algorithm>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "lancet/model/transformer.h"
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
  request.overlap.max_parts = 4;
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

// Shared experts read no route, so a plan can run them while the routed tokens travel.

namespace {

ir::Plan plan_with_shared_experts(std::string_view policy) {
  config::Model m = test::small_model();
  m.n_shared_experts = 1;
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 4;  // an all-to-all takes longer than the experts
  planner::PlanRequest request;
  request.mesh = request.optimizer.mesh = ir::of_experts(2);
  request.overlap.policy = policy;
  request.overlap.memory_factor = 1.05;  // the batch whole
  request.costs = &costs;
  const auto plan = planner::make_plan(
      model::build_forward(m.on(request.mesh), {.batch = 16, .sequence = 16, .groups = 2, .loads = 2}), request);
  if (!plan.ok()) FAIL(plan.error().message);
  return *plan;
}

// The share of the time of the shared experts' instructions of a role in which an all-to-all runs.
double hidden_share(const ir::Plan& plan, ir::Role role) {
  const auto& all = plan.program.instructions;
  double time = 0, under = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].role != role || all[i].label.find("shared_experts") == std::string::npos) continue;
    const ir::Interval mine = plan.predicted[i];
    time += mine.end - mine.start;
    for (std::size_t j = 0; j < all.size(); ++j)
      if (all[j].stream == ir::Stream::expert)
        under +=
            std::max(0.0, std::min(mine.end, plan.predicted[j].end) - std::max(mine.start, plan.predicted[j].start));
  }
  REQUIRE(time > 0);
  return under / time;
}

}  // namespace

TEST_CASE("planner: lancet runs shared experts under the all-to-alls of their layer, forward and backward") {
  const ir::Plan sequential = plan_with_shared_experts("sequential"), lancet = plan_with_shared_experts("lancet");
  CHECK(lancet.header.text("policy") == "lancet");
  for (const ir::Role role : {ir::Role::forward, ir::Role::dx}) {
    CHECK(hidden_share(sequential, role) == 0);
    CHECK(hidden_share(lancet, role) > 0.8);
  }
}
