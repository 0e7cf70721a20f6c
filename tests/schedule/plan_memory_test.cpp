// Which tensors of a step share bytes.
#include "lancet/schedule/plan_memory.h"

#include <catch2/catch.hpp>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"

using namespace lancet;

TEST_CASE("a gradient that the next step uses leaves its bytes to what lives in between") {
  const auto parsed = ir::parse(R"(input @x : f32[16]
parameter @w : f32[16]
carried %4 : f32[16]
%5 : f32[16] in %4 = all_reduce(%4)  # reduce sync bucket.0@-1
sgd(&@w, %5)  # compute update w@-1
%0 : f32[16] = f(@x, @w)  # compute forward a
%1 : f32[16] = f(%0)  # compute forward b
%2 : f32[16] = f(%1)  # compute forward c
%3 : f32[16] = f(%2)  # compute dx b
%4 : f32[16] = f(%3, %0)  # compute dw a
output loss = %2
)");
  REQUIRE(parsed.ok());
  const ir::Plan plan = schedule::plan_memory(*parsed, ir::dependencies(*parsed));
  CHECK(ir::verify(plan).ok());
  const auto offset = [&](std::size_t instruction) {
    return plan.offsets[parsed->instructions[instruction].results[0].index()];
  };
  const std::int64_t gradient = offset(6);
  CHECK(offset(3) == gradient);  // %1: made after the update, not used once the next gradient is made
  for (const std::size_t other : {2, 4, 5}) CHECK(offset(other) != gradient);
  CHECK(plan.arena_bytes == 4 * 64);
}
