// Plans within a memory: what is made again, and what the limit says.
#include <algorithm>

#include "declared_costs.h"
#include "good.h"
#include "lancet/ir/plan.h"
#include "lancet/model/transformer.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "planner/within_memory.h"
#include "small_model.h"
#include "steps/support.h"

namespace lancet {
namespace {

using test::DeclaredCosts;
using test::require_sound;

// A model whose activations are most of its memory.
ir::Program limited_model() {
  config::Model m = test::small_model();
  m.n_positions = 64;
  return model::build_forward(m.on(ir::of_experts(2)), {.batch = 16, .sequence = 64, .groups = 2, .loads = 2});
}

planner::PlanRequest limited_request(const std::string& policy, const cost::Costs* costs) {
  planner::PlanRequest r;
  r.mesh = ir::of_experts(2);
  r.overlap.policy = policy;
  r.overlap.bucket_bytes = 20'000;
  r.overlap.max_parts = 4;
  r.optimizer.mesh = r.mesh;
  r.costs = costs;
  return r;
}

std::ptrdiff_t repeated(const ir::Program& p) {
  return std::ranges::count(p.instructions, ir::Role::recompute, &ir::Instruction::role);
}

ir::Plan limited_plan(const planner::PlanRequest& r, planner::PlanReport* report = nullptr) {
  auto plan = test::good(planner::make_plan(limited_model(), r, report));
  require_sound(ir::verify(*plan));
  return *plan;
}

}  // namespace

TEST_CASE("memory limit: each choice makes one value more again than the one before, in less memory") {
  auto step = test::good(planner::step_program(limited_model(), limited_request("sequential", nullptr)));
  planner::RecomputeChoices choices(*step, planner::work_times(*step));
  const planner::RecomputeChoice all_kept = choices.within(choices.all_kept_bytes());
  CHECK_FALSE(all_kept.any());
  CHECK_FALSE(all_kept.is_least);
  const planner::RecomputeChoice least = choices.within(0);
  CHECK(least.is_least);
  CHECK(least.any());
  planner::RecomputeChoice before = all_kept;
  for (std::int64_t bytes = all_kept.arena_bytes; bytes > least.arena_bytes; bytes -= bytes / 16) {
    const planner::RecomputeChoice choice = choices.within(bytes);
    CHECK(choice.arena_bytes <= bytes);
    for (std::size_t i = 0; i < choice.chosen.size(); ++i) CHECK((choice.chosen[i] || !before.chosen[i]));
    CHECK(repeated(choices.program(choice)) == std::ranges::count(choice.chosen, true));
    before = choice;
  }
  CHECK(least.arena_bytes < all_kept.arena_bytes * 7 / 10);
}

TEST_CASE("memory limit: what is large and cheap is made again first") {
  auto step = test::good(planner::step_program(limited_model(), limited_request("sequential", nullptr)));
  std::vector<double> times;
  for (const ir::Instruction& at : step->instructions) times.push_back(ops::kind(at) == ops::Kind::other ? 1 : 100);
  planner::RecomputeChoices choices(*step, times);
  const planner::RecomputeChoice choice = choices.within(choices.all_kept_bytes() * 31 / 32);
  REQUIRE(choice.any());
  for (std::size_t i = 0; i < choice.chosen.size(); ++i)
    if (choice.chosen[i]) CHECK(ops::kind(step->instructions[i]) == ops::Kind::other);
}

TEST_CASE("memory limit: plans of every policy stay within it") {
  const DeclaredCosts costs;
  const std::string policy(GENERATE(from_range(planner::policies())).name);
  INFO(policy);
  planner::PlanRequest r = limited_request(policy, &costs);
  const ir::Plan all_kept = limited_plan(limited_request("sequential", &costs));
  r.memory_limit = schedule::plan_bytes(all_kept) - all_kept.arena_bytes / 4;
  planner::PlanReport report;
  const ir::Plan plan = limited_plan(r, &report);
  CHECK(schedule::plan_bytes(plan) <= r.memory_limit);
  CHECK(repeated(plan.program) > 0);
  REQUIRE(report.memory);
  CHECK(report.memory->limit == r.memory_limit);
  CHECK(report.memory->bytes == schedule::plan_bytes(plan));
  CHECK(report.memory->all_kept == schedule::plan_bytes(all_kept));
  CHECK(report.requested == policy);
  if (report.chosen == "sequential" && policy != "sequential") CHECK_FALSE(report.why.empty());
}

TEST_CASE("memory limit: no plan makes more again than the limit asks for") {
  planner::PlanRequest r = limited_request("sequential", nullptr);
  const std::int64_t all_kept = schedule::plan_bytes(limited_plan(r));
  const std::int64_t activation = 16 * 64 * 32 * 4;  // the smallest; the widest is four times as large
  for (int i = 1; i <= 12; ++i) {
    r.memory_limit = all_kept - all_kept * i / 64;
    const std::int64_t used = schedule::plan_bytes(limited_plan(r));
    CHECK(used <= r.memory_limit);
    CHECK(used > r.memory_limit - 2 * activation);
  }
}

TEST_CASE("memory limit: a plan that fits anyway is the plan without a limit") {
  const DeclaredCosts costs;
  for (const char* policy : {"sequential", "dw", "lancet"}) {
    planner::PlanRequest r = limited_request(policy, &costs);
    const ir::Plan free = limited_plan(r);
    r.memory_limit = schedule::plan_bytes(free) * 2;
    CHECK(ir::print(limited_plan(r)) == ir::print(free));
  }
}

TEST_CASE("memory limit: without costs, values are chosen by their work") {
  planner::PlanRequest r = limited_request("sequential", nullptr);
  const ir::Plan all_kept = limited_plan(r);
  r.memory_limit = schedule::plan_bytes(all_kept) - all_kept.arena_bytes / 4;
  const ir::Plan plan = limited_plan(r);
  CHECK(schedule::plan_bytes(plan) <= r.memory_limit);
  CHECK(repeated(plan.program) > 0);
}

TEST_CASE("memory limit: below what any plan needs, the error has the smallest limit, which does") {
  const DeclaredCosts costs;
  planner::PlanRequest r = limited_request(GENERATE("sequential", "lancet"), &costs);
  r.memory_limit = 1'000'000;
  const Error refused = test::refused(planner::make_plan(limited_model(), r));
  CHECK(refused.code == ExitCode::config);
  const std::string before = "train.memory_limit_mb: expected at least ";
  const std::string after = ", with all recomputed that can be, found 1";
  REQUIRE(refused.message.starts_with(before));
  REQUIRE(refused.message.ends_with(after));
  const std::int64_t least = std::stoll(refused.message.substr(before.size()));
  r.memory_limit = (least - 1) * 1'000'000;
  CHECK_FALSE(planner::make_plan(limited_model(), r).ok());
  r.memory_limit = least * 1'000'000;
  CHECK(schedule::plan_bytes(limited_plan(r)) <= r.memory_limit);
}

TEST_CASE("memory limit: what is made again waits for the last message of the backward pass before it") {
  const DeclaredCosts costs;
  planner::PlanRequest r = limited_request("lancet", &costs);
  const ir::Plan all_kept = limited_plan(limited_request("sequential", &costs));
  r.memory_limit = schedule::plan_bytes(all_kept) - all_kept.arena_bytes / 3;
  const ir::Plan plan = limited_plan(r);
  double forward_end = 0, first_again = 1e9;
  for (std::size_t i = 0; i < plan.program.instructions.size(); ++i) {
    const ir::Instruction& at = plan.program.instructions[i];
    if (at.role == ir::Role::forward && at.op == "cross_entropy_train")
      forward_end = std::max(forward_end, plan.predicted[i].end);
    if (at.role == ir::Role::recompute) first_again = std::min(first_again, plan.predicted[i].start);
  }
  CHECK(first_again >= forward_end);
}

}  // namespace lancet
