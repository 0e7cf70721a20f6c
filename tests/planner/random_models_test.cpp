// Properties of the plans of any model: random models, every policy and number of parts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "declared_costs.h"
#include "good.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"
#include "lancet/schedule/step.h"
#include "schedule/ranges.h"
#include "schedule/slow_simulator.h"
#include "steps/random_model.h"

using namespace lancet;
using namespace lancet::test;
using schedule::Cut;

namespace {

constexpr std::uint32_t models = 40;

test::DeclaredCosts random_costs(std::mt19937& random) {
  test::DeclaredCosts costs;
  costs.elements_per_ms = 100 << random() % 10;
  costs.network_mb_per_s = 0.1 * double(1 << random() % 10);
  costs.latency_ms = 0.01 * double(random() % 10);
  return costs;
}

ir::Program whole_step(const ir::Program& forward, std::int64_t bucket_bytes) {
  passes::OptimizeOptions options;
  options.mesh = ir::of_experts(2);
  return passes::optimize(
      passes::sync(of_rank(passes::autodiff(forward), ir::of_experts(2)), ir::of_experts(2), bucket_bytes), options);
}

bool overlap(const ir::Interval& a, const ir::Interval& b) { return a.start < b.end - 1e-9 && b.start < a.end - 1e-9; }

}  // namespace

TEST_CASE("random models: any ranges in any number of parts make each result once") {
  int split_ranges = 0;
  for (std::uint32_t seed = 1; seed <= models; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const test::DeclaredCosts costs = random_costs(random);
    const ir::Program program = whole_step(RandomModel(seed).make(), 1 << 12);
    const auto step = schedule::Step::make(program, costs, schedule::part_counts({.max_parts = 8}));
    REQUIRE(step.ok());
    REQUIRE(step->part_counts(schedule::cut_named("batch")) == std::vector<int>{2, 4, 8});
    for (int parts : {2, 4, 8}) {
      const auto groups = schedule::forward_groups(*step, 3);
      const std::size_t first = random() % (groups.size() - 1),
                        last = first + 1 + random() % (groups.size() - 1 - first);
      const std::vector<schedule::Range> ranges{{int(groups[first]), int(groups[last]), parts}};
      for (const schedule::Split& split :
           {step->all(schedule::cut_named("batch"), parts), schedule::split_of(*step, ranges, false),
            schedule::split_of(*step, ranges, true)}) {
        const schedule::Rewritten rewritten = schedule::rewrite(program, split);
        require_sound(ops::verify(rewritten.program));
        std::map<int, int> made;
        for (int origin : rewritten.origin)
          if (origin >= 0) ++made[origin];
        for (std::size_t i = 0; i < split.parts.size(); ++i) REQUIRE(made.at(int(i)) == split.parts[i]);
        for (std::size_t o = 0; o < program.outputs.size(); ++o)
          REQUIRE(rewritten.program.type(rewritten.program.outputs[o].tensor) ==
                  program.type(program.outputs[o].tensor));
        require_sound(ir::verify(schedule::plan_memory(rewritten.program, ir::dependencies(rewritten.program))));
        split_ranges += ir::print(rewritten.program) != ir::print(program);
      }
    }
  }
  CHECK(split_ranges > 100);
}

TEST_CASE("random models: every policy's plan is sound, reproducible, and between its bounds") {
  const std::vector<std::string_view> all = planner::compared_policies();
  std::set<std::string> chosen;
  int bounded = 0;
  for (std::uint32_t seed = 1; seed <= 22; ++seed) {
    std::mt19937 random(seed);
    const test::DeclaredCosts costs = random_costs(random);
    const ir::Program forward = RandomModel(seed).make();
    planner::PlanRequest request{.overlap = {.bucket_bytes = 1 << 12}, .costs = &costs, .mesh = ir::of_experts(2)};
    request.optimizer.mesh = ir::of_experts(2);
    request.optimizer.clip_grad = seed % 2;
    for (const std::string_view policy : {all[seed % all.size()], std::string_view("lancet")}) {
      INFO("seed " << seed << ", " << policy);
      request.overlap.policy = policy;
      planner::PlanReport report;
      const auto plan = planner::make_plan(forward, request, &report);
      REQUIRE(plan.ok());
      require_sound(ir::verify(*plan));
      if (seed <= 6) REQUIRE((ir::print(*plan) == ir::print(*planner::make_plan(forward, request))));
      chosen.insert(report.chosen);
      for (const planner::PolicyResult& result : report.policies) {
        const schedule::Timeline& t = result.timeline;
        CHECK(t.makespan >= std::max(t.compute, t.communication) - 1e-9);
        CHECK(t.makespan <= t.compute + t.all_to_all + t.all_reduce + costs.launch_ms() * double(t.when.size()));
        const schedule::Timeline& whole = report.policies.front().timeline;  // `sequential`
        if (t.compute < whole.compute || t.all_to_all < whole.all_to_all || t.all_reduce < whole.all_reduce)
          continue;  // parts take less time than whole instructions, by these costs
        CHECK(t.makespan >= report.lower_bound.ms() - 1e-9);
        ++bounded;
      }
    }
  }
  CHECK(chosen.size() > 6);
  CHECK(bounded > 44);
}

namespace {

// A model, the mesh of its two ranks, and what the machine and the popular experts take.
struct RandomStep {
  ir::Program forward;
  ir::Mesh mesh;
  test::DeclaredCosts even;
  std::unique_ptr<const cost::Costs> costs;

  RandomStep(std::mt19937& random, std::uint32_t seed) : forward(RandomModel(seed).make()), even(random_costs(random)) {
    mesh[seed % 5 == 0 ? ir::Axis::data : ir::Axis::expert] = 2;
    even.core = 0.01 * double(random() % 4);
    even.beside = {1 - 0.1 * double(random() % 4), 0.5 + 0.25 * double(random() % 3)};
    if (random() % 3 == 0) even.beside.queue_ms = 0.02 * double(random() % 10);
    costs = even.under(test::loads_of_fullest(1 + 0.25 * double(random() % 4)));
  }
};

// A second simulator gives the plans the times that they were predicted to take.
void check_times(std::span<const ir::Plan> plans, const ir::Mesh& mesh, const cost::Costs& costs) {
  std::vector<std::vector<cost::OpCost>> op_costs;
  std::vector<schedule::Dependencies> needed;
  for (const ir::Plan& plan : plans) {
    op_costs.push_back(test::good(cost::op_costs(costs, plan.program)).value());
    needed.push_back(ir::dependencies(plan.program));
    schedule::join(needed.back(), plan.waits);
  }
  std::vector<schedule::RankClass> classes;
  for (std::size_t c = 0; c < plans.size(); ++c)
    classes.push_back({plans[c].program, needed[c], op_costs[c], costs.interference(), costs.launch_ms()});
  const auto when = SlowSimulator(classes, mesh).run();
  double most = 0;
  for (std::size_t c = 0; c < plans.size(); ++c)
    for (std::size_t i = 0; i < when[c].size(); ++i)
      most = std::max(most, std::abs(when[c][i].end - plans[c].predicted[i].end));
  CHECK(most < 1e-6);
}

// Plans of random steps under random budgets, in ascending order of these.
void check_budgets(std::uint32_t first_seed, std::uint32_t steps, int budgets) {
  int bound = 0, recomputed = 0, shorter = 0, compared = 0;
  for (std::uint32_t seed = first_seed; seed < first_seed + steps; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const RandomStep step(random, seed);
    planner::PlanRequest request{
        .overlap = {.policy = "lancet", .bucket_bytes = 1 << 12}, .costs = step.costs.get(), .mesh = step.mesh};
    request.optimizer.mesh = step.mesh;
    request.optimizer.clip_grad = seed % 2;
    const auto planned = [&](planner::PlanReport* report = nullptr) {
      return test::good(planner::make_plan(step.forward, request, report)).value();
    };
    request.overlap.policy = "sequential";
    const std::int64_t in_turns = schedule::plan_bytes(planned());
    request.overlap.policy = "lancet";
    std::vector<std::int64_t> limits{std::int64_t{1} << 40};
    for (int i = 1; i < budgets; ++i) limits.push_back(in_turns / 100 * (90 + std::int64_t(random() % 90)));
    std::ranges::sort(limits);
    double before = std::numeric_limits<double>::infinity();
    bool before_recomputes = false, cheaper_in_parts = false;  // by these costs
    for (const std::int64_t limit : limits) {
      INFO("limit " << limit << " of " << in_turns);
      request.memory_limit = limit;
      request.compare = true;
      planner::PlanReport report;
      const auto made = planner::make_plan(step.forward, request, &report);
      if (!made.ok()) {
        CHECK_THAT(made.error().message, Catch::StartsWith("train.memory_limit_mb: expected at least "));
        continue;
      }
      const double ms = made->header.real("predicted_ms");
      CHECK(schedule::plan_bytes(*made) <= limit);
      // A plan that keeps everything and lacks no memory is not compared with those that recompute some of it. Others
      // are left out by what the computation of whole instructions takes.
      const bool recomputes = report.memory->activations < report.memory->all_activations;
      const auto chosen = std::ranges::find(report.policies, report.chosen, &planner::PolicyResult::policy);
      cheaper_in_parts |= chosen->timeline.compute < report.policies.front().timeline.compute * (1 - 1e-9);
      if (limit == limits.back()) check_times(std::span(&*made, 1), step.mesh, *step.costs);
      if (!cheaper_in_parts) CHECK(ms >= report.lower_bound.ms() - 1e-9);
      if (!cheaper_in_parts)
        CHECK(ms <= before * (before_recomputes && !recomputes && !report.memory_binds ? 1.03 : 1 + 1e-9));
      for (const planner::PolicyResult& other : report.policies)
        if (other.fits) CHECK(ms <= other.timeline.makespan * (1 + 1e-9));
      bound += report.memory_binds;
      compared += !cheaper_in_parts;
      recomputed += recomputes;
      before_recomputes = recomputes;
      shorter += ms < before;
      before = ms;
    }
    request.memory_limit = 0;
    before = std::numeric_limits<double>::infinity();
    for (const int parts : {1, 2, 4, 8, 16}) {
      INFO("at most " << parts << " parts");
      request.overlap.max_parts = parts;
      const double ms = planned().header.real("predicted_ms");
      CHECK(ms <= before * (1 + 1e-9));
      before = ms;
    }
  }
  CHECK(bound > 0);
  CHECK(recomputed > 0);
  CHECK(shorter > int(steps));
  CHECK(compared > int(steps));
}

}  // namespace

TEST_CASE("random models: more memory or parts never make a plan longer, nor is it longer than what it contains") {
  check_budgets(1, 4, 5);
}

TEST_CASE("200 random models: the same under 20 budgets", "[.]") { check_budgets(1000, 200, 20); }

namespace {

int blocks_of(const ir::Program& program) {
  int blocks = 0;
  for (const ir::Instruction& at : program.instructions)
    blocks = std::max(blocks, 1 + ir::block_of(at.label).value_or(-1));
  return blocks;
}

// Plans of the stages of a random model under `lancet`, every schedule, and limits of memory in ascending order.
int check_stages(std::uint32_t seed, const std::vector<int>& micro_batches) {
  std::mt19937 random(seed);
  const RandomStep step(random, seed);
  const int blocks = blocks_of(step.forward);
  const std::vector<std::string_view> others = planner::compared_policies();  // in turns, beside sequential
  int planned = 0;
  for (const int stages : {2, 3})
    for (int schedule = 0; schedule < 4; ++schedule)
      for (const int micro : micro_batches) {
        planner::PlanRequest request{
            .overlap = {.bucket_bytes = 1 << 12}, .costs = step.costs.get(), .mesh = step.mesh};
        request.mesh[ir::Axis::stage] = stages;
        request.optimizer.mesh = request.mesh;
        request.optimizer.clip_grad = seed % 2;
        request.micro_batches = micro;
        request.accumulate = micro > 1;
        request.pipeline_schedule = config::PipelineSchedule(schedule);
        const int chunks = request.pipeline_schedule == config::PipelineSchedule::interleaved ? 2 * stages : stages;
        if (blocks < chunks) continue;
        for (int chunk = 0; chunk < chunks; ++chunk) request.first_blocks.push_back(chunk * blocks / chunks);
        INFO("seed " << seed << ", " << stages << " stages, " << name(request.pipeline_schedule) << ", " << micro
                     << " micro batches");
        // The time and the memory; nothing if no plan has so little.
        const auto plan = [&](std::string_view policy,
                              std::int64_t limit) -> std::optional<std::pair<double, std::int64_t>> {
          request.overlap.policy = policy;
          request.memory_limit = limit;
          planner::StageReport report;
          const auto plans = planner::make_stage_plans(step.forward, request, nullptr, &report);
          if (!plans.ok()) {
            CHECK(plans.error().message.starts_with("train.memory_limit_mb: expected at least"));
            return std::nullopt;
          }
          std::int64_t bytes = 0;
          for (const ir::Plan& of : *plans) bytes = std::max(bytes, schedule::plan_bytes(of));
          CHECK(report.makespan >= report.least * (1 - 1e-9));
          check_times(*plans, request.mesh, *step.costs);
          return std::pair(report.makespan, bytes);
        };
        const auto schedule_asked =
            std::exchange(request.pipeline_schedule, config::PipelineSchedule::one_forward_one_backward);
        const std::int64_t of_1f1b = plan("sequential", std::int64_t{1} << 40)->second;
        request.pipeline_schedule = schedule_asked;
        double before = std::numeric_limits<double>::infinity();
        for (const double share : {0.6, 0.75, 0.9, 1.02, 1.15, 1e3}) {
          const auto limit = std::int64_t(share * double(of_1f1b));
          INFO("limit " << limit);
          const auto found = plan("lancet", limit);
          if (!found) {
            CHECK(share < 1);
            CHECK(before == std::numeric_limits<double>::infinity());
            continue;
          }
          CHECK(found->second <= limit);
          CHECK(found->first <= before * (1 + 1e-9));
          for (const std::string_view policy :
               {std::string_view("sequential"), others[std::size_t(planned) % others.size()]}) {
            INFO(policy);
            if (const auto contained = plan(policy, limit)) CHECK(found->first <= contained->first * (1 + 1e-9));
          }
          before = found->first;
          ++planned;
        }
      }
  return planned;
}

}  // namespace

TEST_CASE("random models in stages: plans end together, no other policy's is shorter, nor one in less memory") {
  CHECK(check_stages(18, {1}) == 9);
  CHECK(check_stages(5, {2}) == 21);  // some in less memory than 1F1B needs
}

TEST_CASE("200 random models in stages: the same", "[.]") {
  for (std::uint32_t seed = 1000; seed < 1200; ++seed) check_stages(seed, {1, 2, 4});
}

TEST_CASE("one message at a time: the streams take turns on the network, in order") {
  for (std::uint32_t seed = 1; seed <= models; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const test::DeclaredCosts costs = random_costs(random);
    const ir::Program program = whole_step(RandomModel(seed).make(), 1 << 12);
    const auto op_costs = cost::op_costs(costs, program);
    REQUIRE(op_costs.ok());
    const schedule::Dependencies needed = schedule::one_message_at_a_time(program, ir::dependencies(program));
    const schedule::Timeline timeline =
        schedule::simulate(program, needed, *op_costs, costs.interference(), costs.launch_ms());
    const ir::Interval* before = nullptr;
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      if (program.instructions[i].stream == ir::Stream::compute) continue;
      const ir::Interval& now = timeline.when[i];
      if (before) {
        CHECK(now.start >= before->end - 1e-9);
        CHECK_FALSE(overlap(*before, now));
      }
      before = &now;
    }
    REQUIRE(before);
  }
}

// Forced numbers of parts on random models: the plan has them, or reports that they do not fit the memory.

TEST_CASE("random models: any forced number of parts gives a plan with a finite prediction") {
  int in_parts = 0, whole = 0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    test::DeclaredCosts costs;
    costs.elements_per_ms = 100 << random() % 10;
    costs.network_mb_per_s = 0.1 * double(1 << random() % 10);
    const ir::Program forward = RandomModel(seed).make();
    planner::PlanRequest request{.overlap = {.policy = "lancet", .bucket_bytes = 1 << 12, .memory_factor = 1},
                                 .costs = &costs,
                                 .mesh = ir::of_experts(2)};
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
      const bool split = ir::print(*plan).find("parts=2") != std::string::npos;
      CHECK((result.parts == 2) == split);
      (split ? in_parts : whole)++;
    }
  }
  CHECK(in_parts > 0);
  CHECK(whole > 0);  // so that both outcomes are tested
}
