// The memory that is known before planning, against that of the plan.
#include <catch2/catch.hpp>

#include "lancet/planner/from_config.h"
#include "lancet/run/planned_step.h"
#include "lancet/schedule/plan_memory.h"
#include "program.h"

using namespace lancet;

namespace {

// Compares the least memory with what the plan of the step holds.
void check_least_memory(const std::vector<std::string>& overrides, int ranks) {
  const auto config = config::parse(test::small_config_text, "small.json", overrides);
  REQUIRE(config.ok());
  const auto plan = planner::plan_step({*config, ranks}, {});
  REQUIRE(plan.ok());
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
