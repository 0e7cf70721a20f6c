// Forced numbers of parts on random models: the plan has them, or reports that they do not fit the memory.
#include <cmath>
#include <random>

#include "declared_costs.h"
#include "lancet/planner/planner.h"
#include "steps/random_model.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("random models: any forced number of parts gives a plan with a finite prediction") {
  int in_parts = 0, whole = 0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    test::DeclaredCosts costs;
    costs.elements_per_ms = 100 << random() % 10;
    costs.network_mb_per_s = 0.1 * double(1 << random() % 10);
    const ir::Program forward = RandomModel(seed).make();
    planner::PlanRequest request{
        .overlap = {.policy = "lancet", .bucket_bytes = 1 << 12}, .costs = &costs, .mesh = ir::of_experts(2)};
    request.optimizer.mesh = ir::of_experts(2);
    request.overlap.parts = 2;
    INFO("seed " << seed);
    planner::PlanReport report;
    const auto plan = planner::make_plan(forward, request, &report);
    REQUIRE(plan.ok());
    CHECK(std::isfinite(plan->header.real("predicted_ms")));
    for (const planner::PolicyResult& result : report.policies) {
      const schedule::Timeline& t = result.timeline;
      CHECK(t.makespan <= t.compute + t.all_to_all + t.all_reduce + costs.launch_ms() * double(t.when.size()));
      if (result.policy != "lancet") continue;
      const bool says_so = result.how.find("; nothing in 2 parts fits the memory") != std::string::npos;
      const bool split = ir::print(*plan).find("parts=2") != std::string::npos;
      CHECK(says_so != split);
      (split ? in_parts : whole)++;
    }
  }
  CHECK(in_parts > 0);
  CHECK(whole > 0);  // so that both outcomes are tested
}
