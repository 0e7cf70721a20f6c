#include <catch2/catch.hpp>

#include "lancet/base/check.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet {
namespace {

ir::Program rounds_of(const std::string& last_line) {
  auto program = ir::parse(R"(program p
parameter @x : f32[2,3,8]
input @n : i32[1]
%1 : f32[2,3,8] = gelu(@x)  # compute forward a
%2 : i32[1] = round(@n)  # compute forward a.rounds repeated 1
%3 : f32[2,3,8] = gelu(@x)  # compute forward a repeated 1
%10 : f32[2,3,8] = gelu(@x)  # compute forward other
%4 : f32[2,3,8] = gelu(%3)  # compute forward b repeated 1
%5 : f32[2,3,8] = gelu(%4)  # compute forward c repeated 1
%6 : f32[2,3,8] in %1 = add_to(%1, %5)  # compute forward a.rounds repeated 1
)" + last_line);
  if (!program.ok()) throw InternalError(program.error().message);
  return std::move(*program);
}

}  // namespace

TEST_CASE("the instructions of a repeat fold into one, which shares its scratch among them") {
  const ir::Program program = rounds_of("%7 : f32[2,3,8] = gelu(%6)  # compute forward d\noutput y = %7\n");
  CHECK(passes::has_unfolded_repeats(program));
  const ir::Program folded = passes::fold_repeats(program, ir::of_experts(1));
  CHECK(ops::verify(folded).ok());
  CHECK_FALSE(passes::has_unfolded_repeats(folded));
  CHECK(ir::print(folded) == R"(program p
parameter @x : f32[2,3,8]
input @n : i32[1]
%1 : f32[2,3,8] = gelu(@x)  # compute forward a
%10 : f32[2,3,8] = gelu(@x)  # compute forward other
%2 : i32[1], %11 : i32[96], %6 : f32[2,3,8] in %1 = repeat(@n, @x, %1)  # expert forward a.rounds
body %3 : f32[2,3,8] in %11 + 0 = gelu(@x)  # compute forward a
body %4 : f32[2,3,8] in %11 + 192 = gelu(%3)  # compute forward b
body %5 : f32[2,3,8] in %11 + 0 = gelu(%4)  # compute forward c
body %6 = add_to(%1, %5)  # compute forward a.rounds
%7 : f32[2,3,8] = gelu(%6)  # compute forward d
output y = %7
)");
}

TEST_CASE("what a repeat makes in memory of its own stays in its body") {
  const ir::Program folded = passes::fold_repeats(
      rounds_of("%7 : f32[2,3,8] = gelu(%4)  # compute forward d\noutput y = %7\n"), ir::of_experts(1));
  const Status status = ops::verify(folded);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message.find("%4 is read before it is made") != std::string::npos);
}

}  // namespace lancet
