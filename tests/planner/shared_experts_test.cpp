// Shared experts read no route, so a plan can run them while the routed tokens travel.
#include <algorithm>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/planner/planner.h"
#include "small_model.h"

using namespace lancet;

namespace {

ir::Plan plan_with_shared_experts(std::string_view policy) {
  config::Model m = test::small_model();
  m.n_shared_experts = 1;
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 4;  // an all-to-all takes longer than the experts
  planner::PlanRequest request;
  request.mesh = request.optimizer.mesh = ir::of_experts(2);
  request.overlap.policy = policy;
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
