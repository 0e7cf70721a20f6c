// Which tensors of a step share bytes.
#include "lancet/schedule/plan_memory.h"

#include <catch2/catch.hpp>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/print.h"
#include "lancet/ir/verify.h"

using namespace lancet;

TEST_CASE("signals share bytes with nothing, and join two streams without a wait") {
  const auto parsed = ir::parse(R"(input @x : f32[16,1]
%0 : f32[16,1], %1 : signals[16] = send(@x) {readiness=rows/1}  # expert forward a
%2 : f32[16,1] = product(%0, %1)  # compute forward b
%3 : f32[16,1] = sum(%2, %0)  # compute forward c
%4 : f32[16,1] = sum(%3, %3)  # compute forward d
%5 : f32[16,1] = sum(%4, %4)  # compute forward e
output y = %5
)");
  REQUIRE(parsed.ok());
  const ir::Program& step = *parsed;
  const ir::Plan plan = schedule::plan_memory(step, ir::dependencies(step));
  CHECK(ir::verify(plan).ok());
  CHECK(plan.waits[1].empty());
  CHECK(plan.waits[2] == std::vector<ir::InstructionId>{{0}});
  CHECK(plan.arena_bytes == 4 * 64);  // of six tensors of 64 bytes
  const auto signals = step.instructions[0].results[1];
  for (std::size_t i = 0; i < plan.offsets.size(); ++i)
    if (i != signals.index()) CHECK(plan.offsets[i] != plan.offsets[signals.index()]);
}
