// The warning of a pipeline that drains more often than it has to.
#include <catch2/catch.hpp>

#include "lancet/planner/from_config.h"

using namespace lancet;

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
