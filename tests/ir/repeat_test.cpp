#include "lancet/ir/program.h"

#include <catch2/catch.hpp>

#include "good.h"
#include "lancet/ir/plan.h"

namespace lancet {
namespace {

// Adds gelu(%2) onto %1 in each round but the first.
const std::string repeating = R"(program p
parameter @x : f32[4,8]
input @count : i32[1]
%1 : f32[4,8] = gelu(@x)  # compute forward a
%3 : i32[1], %4 : i32[64], %5 : f32[4,8] in %1 = repeat(@count, @x, %1)  # expert forward a.rounds
body %6 : f32[4,8] in %4 + 0 = gelu(@x)  # compute forward a
body %7 : f32[4,8] in %4 + 128 = add(%6, @x)  # compute forward a
body %5 = add_to(%1, %7)  # compute forward a
%8 : f32[4,8] = gelu(%5)  # compute forward b
output y = %8
)";

std::string error_of(const std::string& text) {
  const auto program = test::good(ir::parse(text));
  const Status status = ir::verify(*program);
  return status.ok() ? "" : status.error().message;
}

}  // namespace

TEST_CASE("a repeat prints and parses with its body") {
  const auto program = test::good(ir::parse(repeating));
  CHECK(ir::print(*program) == repeating);
  REQUIRE(program->instructions.size() == 3);
  const ir::Instruction& repeat = program->instructions[1];
  CHECK(ir::is_repeat(repeat));
  REQUIRE(repeat.body.size() == 3);
  CHECK(repeat.body[2].results[0] == repeat.results[2]);
  CHECK(ir::verify(*program).ok());
  std::vector<std::string> ops;
  const Status status = ir::for_each_kernel(*program, [&](const ir::Instruction& at, ir::Stream stream) -> Status {
    ops.push_back(at.op + " " + std::string(ir::name(stream)));
    return {};
  });
  CHECK(status.ok());
  CHECK(ops == std::vector<std::string>{"gelu compute", "gelu expert", "add expert", "add_to expert", "gelu compute"});
}

TEST_CASE("a body in place of its repeat runs once, with values of its own") {
  const auto inlined = ir::inline_bodies(*test::good(ir::parse(repeating)));
  CHECK(ir::print(inlined) == R"(program p
parameter @x : f32[4,8]
input @count : i32[1]
input @round : i32[1]
%1 : f32[4,8] = gelu(@x)  # compute forward a
%6 : f32[4,8] = gelu(@x)  # compute forward a
%7 : f32[4,8] = add(%6, @x)  # compute forward a
%5 : f32[4,8] in %1 = add_to(%1, %7)  # compute forward a
%8 : f32[4,8] = gelu(%5)  # compute forward b
output y = %8
)");
  CHECK(ir::verify(inlined).ok());
}

TEST_CASE("instructions of a repeat that is not folded print with its number") {
  const std::string text = R"(program p
parameter @x : f32[4,8]
%1 : f32[4,8] = gelu(@x)  # compute forward a repeated 2
)";
  const auto program = test::good(ir::parse(text));
  CHECK(program->instructions[0].repeated == 2);
  CHECK(ir::print(*program) == text);
}

TEST_CASE("the body of a repeat is closed") {
  REQUIRE(error_of(repeating).empty());
  const auto broken = [](const std::string& from, const std::string& to) {
    const auto at = repeating.find(from);
    REQUIRE(at != repeating.npos);
    return error_of(std::string(repeating).replace(at, from.size(), to));
  };
  // It reads what the repeat does not.
  CHECK(broken("(@count, @x, %1)", "(@count, %1)").find("@x is read") == 0);
  // It reads what is made later, or was overwritten.
  CHECK(broken("%4 + 128 = add(%6, @x)",
               "%4 + 64 = add(@x, @x)  # compute forward a\nbody %9 : f32[4,8] in %4 + 128 = add(%6, @x)")
            .find("%6 is read") == 0);
  // It makes a tensor beyond the scratch, or in memory of its own.
  CHECK(broken("%4 + 128 = add", "%4 + 192 = add").find("%7 is neither in the scratch") == 0);
  CHECK(broken("%7 : f32[4,8] in %4 + 128", "%7 : f32[4,8]").find("%7 is neither in the scratch") == 0);
  // It does not make what the repeat updates.
  CHECK(broken("body %5 = add_to(%1, %7)", "body %9 : f32[4,8] in %4 + 0 = add(%1, %7)").find("%5 is not made") == 0);
  // The repeat makes something in memory of its own.
  CHECK(broken("%5 : f32[4,8] in %1 = repeat", "%5 : f32[4,8] = repeat").find("%5 is not in the memory") == 0);
  // Something else reads what is in the scratch.
  CHECK(broken("gelu(%5)", "gelu(%7)").find("%7 is read before it is made") == 0);
  // No count.
  CHECK(broken("repeat(@count, @x", "repeat(@x, @x").find("expected a repeat of a count") == 0);
}

}  // namespace lancet
