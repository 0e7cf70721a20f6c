// train.deterministic in plans: what it changes for a GPU, and that it changes nothing for the CPU.
#include <catch2/catch.hpp>

#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "program.h"

using namespace lancet;

namespace {

ir::Plan plan_with(std::vector<std::string> overrides) {
  const auto config = config::parse(test::small_config_text, "small.json", overrides);
  REQUIRE(config.ok());
  auto plan = planner::plan_step({*config, 1}, {});
  REQUIRE(plan.ok());
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
