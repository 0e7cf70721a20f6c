// The memory that is known before planning, against that of the plan.
#include <algorithm>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "good.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/planned_step.h"
#include "lancet/schedule/plan_memory.h"
#include "log_capture.h"
#include "program.h"

namespace lancet {
namespace {

// Compares the least memory with what the plan of the step holds.
void check_least_memory(const std::vector<std::string>& overrides, int ranks) {
  const auto config = test::good(config::parse(test::small_config_text, "small.json", overrides));
  const auto plan = test::good(planner::plan_step({*config, ranks}, {}));
  std::int64_t parameters = 0, state = 0, sums = 0;
  for (const ir::Tensor& tensor : plan->program.tensors) {
    if (tensor.kind == ir::TensorKind::parameter) parameters += ir::bytes(tensor.type);
    const bool is_sum = tensor.state == ir::StateKind::gradient_sum;
    if (tensor.kind == ir::TensorKind::state) (is_sum ? sums : state) += ir::bytes(tensor.type);
  }
  const planner::LeastMemory least = planner::least_memory({*config, ranks}).value()[0];
  CHECK(least.parameters == parameters);
  CHECK(least.state == state);
  CHECK(least.gradients == (sums > 0 ? sums : parameters));
  CHECK(least.total() <= schedule::plan_bytes(*plan));
}

}  // namespace

TEST_CASE("the least memory holds the plan's parameters and states and is below the plan's memory") {
  for (const char* optimizer : {"adamw", "sgd"})
    for (const char* weights : {"train.dtype=fp32", "train.dtype=bf16", "train.master_weights=false"})
      for (const int ranks : {1, 2}) {
        std::vector<std::string> overrides{std::string("train.optimizer=") + optimizer, weights};
        if (overrides[1].starts_with("train.master")) overrides.push_back("train.dtype=bf16");
        INFO(optimizer << " " << weights << " " << ranks);
        check_least_memory(overrides, ranks);
        overrides.push_back("train.gradient_accumulation_steps=2");
        check_least_memory(overrides, ranks);
      }
}

// With sequence_parallel the gradients of norms are partial over tensor, too, and so is their optimizer state divided.
TEST_CASE("the least memory divides optimizer state as the plan does") {
  const std::string sequences = GENERATE("train.sequence_parallel=false", "train.sequence_parallel=true");
  INFO(sequences);
  check_least_memory({"train.zero=1", "mesh.data=2", "mesh.tensor=2", sequences}, 4);
  check_least_memory({"train.zero=1", "mesh.expert=2", "mesh.tensor=2", "mesh.data=2", sequences}, 8);
}

TEST_CASE("parts of the positions shorten a step of one sequence by more than a tenth") {
  const auto step_ms = [&](const std::string& parts) {
    const std::vector<std::string> overrides{"model.num_hidden_layers=2", "overlap.policy=lancet", parts};
    const auto config = test::good(config::load(LANCET_SOURCE_DIR "/configs/qwen3-30b-a3b.json", overrides));
    const auto made = test::good(run::plan_offline(*config, {.ranks = 32, .hardware = "dgx-h100", .compare = false}));
    return made->plan.header.real("predicted_ms");
  };
  CHECK(step_ms("overlap.max_parts=2") < 0.9 * step_ms("overlap.max_parts=1"));
}

// The warning of a pipeline that drains more often than it has to.

TEST_CASE("a step whose number of micro batches has no large divisor names the nearest one that has") {
  const auto warned = [](std::int64_t micro_batches, std::int64_t stages = 4) {
    config::Config config;
    config.mesh.stage = stages;
    config.train.gradient_accumulation_steps = micro_batches;
    return planner::short_runs_warning(config);
  };
  for (const std::int64_t fine : {1, 7, 61, 64, 66, 96, 100, 128, 1024}) CHECK(warned(fine).empty());
  CHECK(warned(67, 1).empty());
  CHECK(warned(65) ==
        "train.gradient_accumulation_steps: the pipeline drains after every 13 micro batches of a step's 65, since no "
        "number from 32 to 64 divides 65; of 66, it drains after every 33");
  CHECK(warned(67) ==
        "train.gradient_accumulation_steps: the pipeline drains after every 1 micro batch of a step's 67, since no "
        "number from 32 to 64 divides 67; of 68, it drains after every 34");
  CHECK(warned(127).ends_with("of 128, it drains after every 64"));
  CHECK(warned(131).ends_with("of 132, it drains after every 44"));
  CHECK(warned(257).ends_with("of 258, it drains after every 43"));
}

// The line that says, once and before it, that planning may take minutes.

namespace {

config::Config with_layers(int layers, const std::string& policy) {
  const std::vector<std::string> overrides{"model.n_layer=" + std::to_string(layers), "overlap.policy=" + policy};
  const auto config = test::good(config::parse(test::small_config_text, "small.json", overrides));
  return *config;
}

// Whether planning logged the line.
bool told(const config::Config& config, const planner::StepOptions& options) {
  const test::LogCapture capture;
  const auto plan = planner::plan_step({config, 2}, options);
  return capture.text().find("this may take minutes") != std::string::npos;
}

}  // namespace

TEST_CASE("a large sequential step is said to take long, with all its micro batches") {
  CHECK_FALSE(told(with_layers(60, "sequential"), {}));
  config::Config accumulating = with_layers(200, "sequential");
  CHECK_FALSE(told(accumulating, {}));
  accumulating.train.gradient_accumulation_steps = 8;
  CHECK(told(accumulating, {}));
}

TEST_CASE("planning with several choices of what is recomputed is said to take long once") {
  const config::Config large = with_layers(60, "dw");
  const test::DeclaredCosts costs;
  const auto kept = test::good(planner::plan_step({large, 2}, {.costs = &costs}));
  const std::int64_t less = schedule::plan_bytes(*kept) - kept->arena_bytes / 2;
  const test::LogCapture capture;
  const auto plan = test::good(planner::plan_step({large, 2}, {.costs = &costs, .device_bytes = less}));
  CHECK(schedule::plan_bytes(*plan) <= less);
  CHECK(std::ranges::count(plan->program.instructions, ir::Role::recompute, &ir::Instruction::role) > 0);
  CHECK(capture.count("this may take minutes") == 1);
}

TEST_CASE("a plan that lacks costs is refused before it is said to take long") {
  const cost::Profile nothing;
  const config::Config large = with_layers(60, "lancet");
  REQUIRE_FALSE(planner::plan_step({large, 2}, {.costs = &nothing}).ok());
  CHECK_FALSE(told(large, {.costs = &nothing}));
}

// train.deterministic in plans: what it changes for a GPU, and that it changes nothing for the CPU.

namespace {

ir::Plan plan_with(std::vector<std::string> overrides) {
  const auto config = test::good(config::parse(test::small_config_text, "small.json", overrides));
  auto plan = test::good(planner::plan_step({*config, 1}, {}));
  return *plan;
}

}  // namespace

TEST_CASE("without train.deterministic attention on a GPU may sum in any order, on the CPU nothing changes") {
  const std::string any_order = "train.deterministic=false";
  CHECK(ir::print(plan_with({any_order})) == ir::print(plan_with({})));
  int attentions = 0;
  for (const ir::Instruction& at : plan_with({"device=cuda", any_order}).program.instructions) {
    const bool attention = at.op.starts_with("attention");
    attentions += attention;
    CHECK(at.attributes.integer("deterministic", 1) == (attention ? 0 : 1));
  }
  CHECK(attentions > 1);
  for (const ir::Instruction& at : plan_with({"device=cuda"}).program.instructions)
    CHECK_FALSE(at.attributes.has("deterministic"));
}

}  // namespace lancet
