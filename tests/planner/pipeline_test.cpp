// The driver of the passes: what it refuses after a pass.
#include <catch2/catch.hpp>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "planner/steps.h"

using namespace lancet;

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
