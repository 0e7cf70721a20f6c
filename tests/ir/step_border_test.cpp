// Programs that list instructions of the step before: text, what verify() refuses, and the lives of their memory.
#include "lancet/ir/dependencies.h"

#include "lancet/ir/micro_batches.h"
#include "lancet/ir/plan.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

const std::string border_head = R"(program ring {ranks=2}
input @x : f32[16]
parameter @w : f32[16]
input @schedule : f32[4]
input @schedule@-1 : f32[4]
carried %4 : f32[16]
)";
const std::string border_left = R"(%5 : f32[16] in %4 = all_reduce(%4)  # reduce sync bucket.0@-1
sgd(&@w, %5, @schedule@-1)  # compute update w@-1
)";
const std::string border_step = R"(%0 : f32[16] = f(@x, @w)  # compute forward a
%1 : f32[16] = f(%0)  # compute forward b
%2 : f32[16] = f(%1)  # compute forward c
%3 : f32[16] = f(%2)  # compute dx b
%4 : f32[16] = f(%3, %0)  # compute dw a
output loss = %2
)";
const std::string ring_text = border_head + border_left + border_step;

void check_border_fault(const std::string& text, const std::string& fragment) {
  const Status status = ir::verify(parsed(text));
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message, Catch::Contains(fragment));
}

constexpr std::string_view ring_plan = R"(plan {policy=test}
arena 320
program ring
input @x : f32[16]
parameter @w : f32[16]
carried %4 : f32[16]
[0] sgd(&@w, %4)  # compute update w@-1
[1] %0 : f32[16] = f(@x, @w)  # compute forward a | at 64
[2] %1 : f32[16] = f(%0)  # compute forward b | at 0
[3] %2 : f32[16] = f(%1)  # compute forward c | at 128
[4] %3 : f32[16] = f(%2)  # compute dx b | at 192
[5] %4 : f32[16] = f(%3, %0)  # compute dw a | at 0
output loss = %2
)";

std::string with_other(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("step border: the text of a program that lists the end of the step before") {
  const ir::Program program = parsed(ring_text);
  CHECK(ir::print(program) == ring_text);
  CHECK(ir::verify(program).ok());
  CHECK(ir::crosses_steps(program));
  CHECK(ir::micro_batches(program) == 1);
  CHECK(ir::closes_step(program) == std::vector<bool>{true, true, false, false, false, false, false});
  CHECK(ir::place_of(program.instructions[0]) == "bucket.0@-1");
  const std::vector<ir::InstructionId> order{{2}, {3}, {4}, {5}, {6}, {0}, {1}};
  CHECK(ir::in_step_order(program) == order);
  CHECK(ir::carried_values(program) == std::vector<ir::TensorId>{program.instructions[6].results[0]});
  CHECK(std::ranges::count(ir::crossing_memory(program), true) == 1);
  // The update goes before the reader of its parameter, the maker of the gradient after the sum that reads it.
  const auto dependencies = ir::dependencies(program);
  CHECK(dependencies[2] == std::vector<ir::InstructionId>{{1}});
  CHECK(std::ranges::count(dependencies[6], ir::InstructionId{1}) == 1);
  CHECK(ir::gradient_all_reduces(program)[0]);
}

TEST_CASE("step border: programs that would use memory of another step are refused") {
  const std::string forward = "%0 : f32[16] = f(@x, @w)  # compute forward a\n";
  check_border_fault(border_head + forward + border_left + border_step.substr(forward.size()),
                     "instruction [2] is of the step before, and comes after one of this step that uses the memory of "
                     "@w, in: sgd(&@w, %5, @schedule@-1)");
  check_border_fault(
      border_head + border_step.substr(0, border_step.find("output")) + border_left + "output loss = %2\n",
      "instruction [5] is of the step before, and comes after");
  check_border_fault(with_other(ring_text, "%5, @schedule@-1", "%5, @schedule"),
                     "instruction [1] reads @schedule, an input of another step than its own");
  check_border_fault(with_other(ring_text, "update w@-1", "update w"), "%5 is read before it is made");
  check_border_fault(with_other(ring_text, "forward c", "forward c@-1"), "is read before it is made");
  check_border_fault(with_other(ring_text, "dw a\n", "dw a\ng(%3)  # compute forward d@-1\n"),
                     "is of the step before, but does not close a step");
  check_border_fault(with_other(ring_text, "%4 : f32[16] = f(%3, %0)", "%6 : f32[16] = f(%3, %0)"),
                     "%4 is read before it is made");
}

TEST_CASE("step border: a carried value is made once, with its type, in no memory of its own") {
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"%4 : f32[16] = f(%3", "%4 : f32[8] = f(%3"},
                                 {"%4 : f32[16] = f(%3", "%4 : f32[16] in %4 = f(%3"},
                                 {"dw a\n", "dw a\n%4 : f32[16] = f(%3, %0)  # compute dw a\n"}}) {
    INFO(to);
    CHECK_FALSE(ir::parse(with_other(ring_text, from, to)).ok());
  }
}

TEST_CASE("step border: what crosses it shares bytes only with what lives in between") {
  const auto plan = ir::parse_plan(ring_plan);
  REQUIRE(plan.ok());
  CHECK(ir::print(*plan) == ring_plan);
  CHECK(ir::verify(*plan).ok());
  for (const char* other : {"forward a | at 64", "forward c | at 128", "dx b | at 192"}) {
    const std::string text(other);
    auto edited = ir::parse_plan(with_other(std::string(ring_plan), text, text.substr(0, text.find("at ")) + "at 0"));
    REQUIRE(edited.ok());
    const Status status = ir::verify(*edited);
    REQUIRE_FALSE(status.ok());
    CHECK_THAT(status.error().message, Catch::Contains("share bytes of the arena"));
  }
}
