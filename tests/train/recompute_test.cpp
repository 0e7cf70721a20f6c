// Within a memory limit, which makes activations again in the backward pass, training keeps its bits.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "good.h"
#include "lancet/planner/from_config.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "train/meshes.h"
#include "train/runs.h"

namespace lancet {
namespace {

// Activations of a few megabytes, beside parameters of less than one.
config::Config activations_config() {
  config::Config config = test::small_config();
  config.model.n_layer = 3;
  config.model.n_positions = 64;
  config.train.seq_len = 64;
  config.train.micro_batch_size = 16;
  config.model.capacity_factor = 0.75;
  config.model.router_aux_loss_coef = 0.02;
  config.train.clip_grad = 0;
  return config;
}

// The config with a limit that leaves the arena of the sequential step, or of the stage that needs most under 1F1B,
// about this share.
config::Config limited(config::Config config, int ranks, double share, const cost::Costs* costs) {
  config::Config alone = config;
  alone.overlap.policy = "sequential";
  alone.train.pipeline_schedule = config::PipelineSchedule::one_forward_one_backward;
  const auto plans = test::good(planner::plan_stages({alone, ranks}, {.costs = costs}));
  const auto plan = std::ranges::max_element(*plans, {}, schedule::plan_bytes);
  const std::int64_t bytes = schedule::plan_bytes(*plan) - std::int64_t((1 - share) * double(plan->arena_bytes));
  config.train.memory_limit_mb = bytes / 1'000'000 + 1;
  REQUIRE(config.train.memory_limit_mb * 1'000'000 < schedule::plan_bytes(*plan));
  return config;
}

std::ptrdiff_t recomputed(const ir::Plan& plan) {
  return std::ranges::count(plan.program.instructions, ir::Role::recompute, &ir::Instruction::role);
}

test::Ran run_limited(const config::Config& config, int ranks, int steps, const cost::Costs* costs) {
  const test::Ran ran = test::run_of(config, ranks, steps, {.costs = costs});
  const std::int64_t limit = config.train.memory_limit_mb;
  if (limit > 0) CHECK(schedule::plan_bytes(ran.plan) <= limit * 1'000'000);
  return ran;
}

void check_same_losses(const test::Ran& found, const test::Ran& expected) {
  for (std::size_t i = 0; i < expected.records.size(); ++i) CHECK(found.records[i].loss == expected.records[i].loss);
  CHECK(found.parameters[0] == expected.parameters[0]);
}

void check_same_bits(const config::Config& config, int ranks, double share, int steps = 5,
                     const cost::Costs* costs = nullptr) {
  const test::Ran expected = run_limited(config, ranks, steps, costs);
  REQUIRE(recomputed(expected.plan) == 0);
  const test::Ran found = run_limited(limited(config, ranks, share, costs), ranks, steps, costs);
  INFO(config.overlap.policy << " ran " << found.policy() << ", " << recomputed(found.plan) << " instructions again");
  CHECK(recomputed(found.plan) > 0);
  check_same_losses(found, expected);
}

}  // namespace

TEST_CASE("memory limit: policies train to the same bits") {
  const test::DeclaredCosts costs;
  config::Config config = activations_config();
  for (const char* policy : {"sequential", "dw", "tutel", "fastermoe", "comet"}) {
    config.overlap.policy = policy;
    check_same_bits(config, 2, 0.75, 5, &costs);
  }
}

TEST_CASE("memory limit: policies in parts train as sequential does") {
  const test::DeclaredCosts costs;
  config::Config config = activations_config();
  const test::Ran expected = run_limited(config, 2, 4, &costs);
  for (const planner::PolicyInfo& policy : planner::policies()) {
    config.overlap.policy = policy.name;
    const test::Ran found = run_limited(limited(config, 2, 0.75, &costs), 2, 4, &costs);
    INFO(policy.name << " ran " << found.policy());
    CHECK(recomputed(found.plan) > 0);
    for (std::size_t i = 0; i < expected.records.size(); ++i)
      CHECK(found.records[i].loss == Approx(expected.records[i].loss).epsilon(1e-6));
  }
}

TEST_CASE("memory limit: one rank, bf16, micro batches and routers keep their bits") {
  config::Config config = activations_config();
  SECTION("one rank") { check_same_bits(config, 1, 0.7); }
  SECTION("as little as possible") {
    const test::TemporaryFolder folder;
    config.log.run_dir = folder / "run";
    config.train.memory_limit_mb = 1;
    const Error refused = test::train_run(config, 1);
    CHECK(refused.code == ExitCode::config);
    const std::string before = "train.memory_limit_mb: expected at least ";
    REQUIRE(refused.message.starts_with(before));
    config.train.memory_limit_mb = 0;
    const test::Ran expected = run_limited(config, 1, 5, nullptr);
    config.train.memory_limit_mb = std::stoll(refused.message.substr(before.size()));
    const test::Ran found = run_limited(config, 1, 5, nullptr);
    check_same_losses(found, expected);
  }
  SECTION("bf16") {
    config.train.dtype = DType::bf16;
    config.train.micro_batch_size = 24;
    check_same_bits(config, 2, 0.75);
  }
  SECTION("micro batches, whose loads add up") {
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
    config.train.gradient_accumulation_steps = 2;
    check_same_bits(config, 2, 0.75);
  }
  SECTION("clipping and ZeRO-1") {
    config.train.clip_grad = 1;
    config.train.zero = 1;
    check_same_bits(config, 2, 0.8);
  }
  SECTION("jitter and two experts a token") {
    config.model.router_jitter_noise = 0.1;
    config.model.router = config::Router::top_k;
    config.model.num_experts_per_tok = 2;
    check_same_bits(config, 2, 0.75);
  }
  SECTION("no choice is dropped") {
    config.model.capacity_factor.reset();
    config.model.dropless_imbalance = 1.25;
    check_same_bits(config, 2, 0.8);
  }
}

TEST_CASE("memory limit: tensor parallelism keeps its bits") {
  config::Config config = activations_config();
  config.model.n_head = 4;
  config.mesh.tensor = 2;
  config.train.sequence_parallel = GENERATE(false, true);
  check_same_bits(config, 4, 0.8);
}

namespace {

config::Config staged_config(int stages, config::PipelineSchedule schedule) {
  config::Config config = activations_config();
  config.model.n_layer = 4;
  config.mesh.stage = stages;
  config.train.gradient_accumulation_steps = 4;
  config.train.micro_batch_size = 8;
  config.train.pipeline_schedule = schedule;
  return config;
}

constexpr std::array all_schedules{config::PipelineSchedule::one_forward_one_backward,
                                   config::PipelineSchedule::zero_bubble, config::PipelineSchedule::searched,
                                   config::PipelineSchedule::interleaved};

}  // namespace

TEST_CASE("memory limit: pipeline stages keep their bits, under every schedule") {
  const test::DeclaredCosts costs;
  for (const config::PipelineSchedule schedule : all_schedules) {
    INFO(config::name(schedule));
    check_same_bits(staged_config(2, schedule), 2, 0.7, 5, &costs);
  }
  check_same_bits(staged_config(2, all_schedules[2]), 4, 0.7, 5, &costs);  // with experts on two ranks a stage
  check_same_bits(staged_config(4, all_schedules[1]), 4, 0.7, 5, &costs);
}

TEST_CASE("memory limit: each stage makes again what its own memory asks for, and the first one most") {
  const test::DeclaredCosts costs;
  // Interleaved stages have other blocks than those that the limit is taken from.
  config::Config config = staged_config(2, all_schedules[std::size_t(GENERATE(0, 1, 2))]);
  config.train.gradient_accumulation_steps = 8;
  config.train.micro_batch_size = 16;
  config = limited(config, 2, 0.75, &costs);
  const std::int64_t limit = config.train.memory_limit_mb * 1'000'000;
  const auto plans = test::good(planner::plan_stages({config, 2}, {.costs = &costs}));
  std::vector<std::ptrdiff_t> again;
  for (const ir::Plan& plan : *plans) {
    CHECK(schedule::plan_bytes(plan) <= limit);
    again.push_back(recomputed(plan));
  }
  CHECK(again[0] > again[1]);
}

TEST_CASE("memory limit: below what the stages need, the error has the smallest limit, which does") {
  const int ranks = GENERATE(2, 4);  // 4: with all-to-alls, beside which zero bubble puts weight gradients
  config::Config config = staged_config(2, GENERATE(from_range(all_schedules)));
  config.train.memory_limit_mb = 1;
  const Error refused = test::refused(planner::plan_stages({config, ranks}, {}));
  CHECK(refused.code == ExitCode::config);
  const std::string before = "train.memory_limit_mb: expected at least ";
  REQUIRE(refused.message.starts_with(before));
  const std::int64_t least = std::stoll(refused.message.substr(before.size()));
  config.train.memory_limit_mb = least - 1;
  CHECK_FALSE(planner::plan_stages({config, ranks}, {}).ok());
  config.train.memory_limit_mb = least;
  const auto plans = test::good(planner::plan_stages({config, ranks}, {}));
  for (const ir::Plan& plan : *plans) CHECK(schedule::plan_bytes(plan) <= least * 1'000'000);
}

TEST_CASE("memory limit: evaluations share the arena and keep their losses") {
  const test::TemporaryFolder folder;
  config::Config config = test::config_with_files(folder, "whole");
  config.model.n_positions = config.train.seq_len = 64;
  config.train.micro_batch_size = 16;
  config.train.eval_interval = 3;
  REQUIRE(test::train_run(config, 2).code == ExitCode::done);
  config = limited(config, 2, 0.75, nullptr);
  config.log.run_dir = folder / "limited";
  REQUIRE(test::train_run(config, 2).code == ExitCode::done);
  CHECK(test::held_out_losses(folder / "whole").size() == 2);
  CHECK(test::held_out_losses(folder / "limited") == test::held_out_losses(folder / "whole"));
}

TEST_CASE("memory limit: a run resumes bit for bit, with the limit or without") {
  const test::TemporaryFolder folder;
  config::Config config = test::config_in(folder / "whole");
  config.model.n_positions = config.train.seq_len = 64;
  config.train.micro_batch_size = 16;
  REQUIRE(test::train_run(config, 2).code == ExitCode::done);
  config = limited(config, 2, 0.75, nullptr);
  config.log.run_dir = folder / "stopped";
  test::stop_after(config, 2, 2);
  config.train.memory_limit_mb = GENERATE(0, 1) * config.train.memory_limit_mb;
  REQUIRE(test::train_run(config, 2).code == ExitCode::done);
  CHECK(test::losses(folder / "stopped") == test::losses(folder / "whole"));
  CHECK(test::manifest_in(folder / "stopped", 6).files == test::manifest_in(folder / "whole", 6).files);
}

}  // namespace lancet
