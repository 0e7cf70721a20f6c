// Bounds of ways to overlap, beside what the policies reach: random models.
#include <catch2/catch.hpp>
#include <random>

#include "declared_costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "planner/steps.h"
#include "steps/random_model.h"

using namespace lancet;
using namespace lancet::test;

namespace {

void check_between(const schedule::Bounds& bounds) {
  const double least = bounds.least() * (1 - 1e-9);
  CHECK(bounds.today.any.ms <= bounds.today.within.ms);
  CHECK(bounds.today.any.ms >= least);
  REQUIRE(bounds.ways.size() == schedule::overlap_ways().size());
  for (std::size_t w = 0; w < bounds.ways.size(); ++w) {
    INFO(schedule::overlap_ways()[w].name);
    for (const schedule::IdealStep& step : {bounds.ways[w].any, bounds.ways[w].within}) {
      CHECK(step.ms >= least);
      CHECK(step.exposed >= 0);
      CHECK(step.exposed <= bounds.network * (1 + 1e-9));
      CHECK(step.ms >= (bounds.compute + step.exposed) * (1 - 1e-9));
    }
    CHECK(bounds.ways[w].any.ms <= bounds.ways[w].within.ms);
    CHECK(bounds.ways[w].any.ms <= bounds.today.any.ms);
    CHECK(bounds.ways.back().any.ms <= bounds.ways[w].any.ms);
  }
}

}  // namespace

TEST_CASE("bounds: between the work and what the policies reach") {
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    DeclaredCosts costs;
    costs.elements_per_ms = 100 << random() % 10;
    costs.network_mb_per_s = 0.1 * double(1 << random() % 10);
    costs.latency_ms = 0;  // a part's message has a latency, a tile's does not
    // The bounds of a plan are those of one step, whose end does not run in the next one.
    planner::PlanRequest request{.overlap = {.policy = "lancet", .bucket_bytes = 1 << 12, .across_steps = false},
                                 .costs = &costs,
                                 .mesh = ir::of_experts(2),
                                 .compare = true,
                                 .bounds = true};
    request.optimizer.mesh = ir::of_experts(2);
    planner::PlanReport report;
    REQUIRE(planner::make_plan(RandomModel(seed).make(), request, &report).ok());
    REQUIRE(report.bounds);
    check_between(report.bounds->step);
    check_between(report.bounds->plan);
    CHECK(report.bounds->step.least() == Approx(report.lower_bound.ms()));
    for (const planner::PolicyResult& result : report.policies) {
      INFO(result.policy << " " << result.timeline.makespan);
      // Parts may together take less time than the whole, whose work bounds the ways. List scheduling finds an order
      // that is nearly the best.
      const double reached = std::max(result.timeline.makespan, report.bounds->step.least());
      CHECK(report.bounds->step.ways.back().any.ms <= 1.01 * reached);
      if (result.policy == "sequential") CHECK(report.bounds->step.today.within.ms <= result.timeline.makespan);
      if (result.policy == report.chosen) CHECK(report.bounds->plan.today.within.ms <= result.timeline.makespan);
    }
  }
}

TEST_CASE("bounds: a plan without their request has none") {
  DeclaredCosts costs;
  planner::PlanRequest request{.costs = &costs, .mesh = ir::of_experts(2)};
  request.optimizer.mesh = ir::of_experts(2);
  planner::PlanReport report;
  REQUIRE(planner::make_plan(RandomModel(1).make(), request, &report).ok());
  CHECK_FALSE(report.bounds);
}

// The driver of the passes: what it refuses after a pass.

namespace {

schedule::Candidate candidate() {
  schedule::Candidate made;
  made.program = ir::parse(R"(program step
input @x : f32[2,4]
input @y : f32[2,4]
%0 : f32[2,4] = gelu(@x)  # compute forward a
%1 : f32[2,4] = add(%0, @y)  # compute forward b
output y = %1
)")
                     .value();
  made.needed = ir::dependencies(made.program);
  made.op_costs.resize(2);
  return made;
}

std::string refusal(schedule::Candidate made) {
  planner::Pipeline pipeline;
  try {
    pipeline.run("reverse", candidate(), [&](schedule::Candidate) { return made; });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("a pass that loses a dependency or a cost is named") {
  CHECK(refusal(candidate()) == "none");
  schedule::Candidate lost = candidate();
  REQUIRE(lost.needed[1].size() == 1);
  lost.needed[1].clear();
  CHECK_THAT(refusal(lost), Catch::Contains("after pass reverse: [1] does not wait for [0]"));
  schedule::Candidate short_of_costs = candidate();
  short_of_costs.op_costs.pop_back();
  CHECK_THAT(refusal(short_of_costs),
             Catch::Contains("after pass reverse: 2 instructions, 2 lists of dependencies, 1 costs"));
}
