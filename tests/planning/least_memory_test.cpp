// The memory that is known before planning, against that of the plan.
#include <catch2/catch.hpp>

#include "lancet/planning/from_config.h"
#include "lancet/planning/planned_step.h"
#include "program.h"

using namespace lancet;

TEST_CASE("the least memory holds the plan's parameters and states and is below the plan's memory") {
  for (const char* optimizer : {"adamw", "sgd"})
    for (const char* weights : {"train.dtype=fp32", "train.dtype=bf16", "train.master_weights=false"})
      for (const int ranks : {1, 2}) {
        std::vector<std::string> overrides{std::string("train.optimizer=") + optimizer, weights};
        if (overrides[1].starts_with("train.master")) overrides.push_back("train.dtype=bf16");
        const auto config = config::parse(test::small_config_text, "small.json", overrides);
        REQUIRE(config.ok());
        const auto plan = planning::plan_step(*config, ranks, {});
        REQUIRE(plan.ok());
        std::int64_t parameters = 0, state = 0;
        for (const ir::Tensor& tensor : plan->program.tensors) {
          if (tensor.kind == ir::TensorKind::parameter) parameters += ir::bytes(tensor.type);
          if (tensor.kind == ir::TensorKind::state) state += ir::bytes(tensor.type);
        }
        const planning::LeastMemory least = planning::least_memory(*config, ranks).value();
        INFO(optimizer << " " << weights << " " << ranks);
        CHECK(least.parameters == parameters);
        CHECK(least.state == state);
        CHECK(least.gradients > 0);
        CHECK(least.total() <= planning::resident_tensor_bytes(plan->program) + plan->arena_bytes);
      }
}
