// Which micro batch instructions, inputs and outputs are of, in text and in the Program.
#include <catch2/catch.hpp>

#include "good.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ir/plan.h"
#include "support.h"

namespace lancet {

TEST_CASE("micro batches: names say them, and the first adds nothing") {
  CHECK(ir::of_micro_batch("h.0.attn", 0) == "h.0.attn");
  CHECK(ir::of_micro_batch("tokens", 12) == "tokens@12");
  for (const int micro : {ir::step_before, 0, 1, 12, 1 << 20}) {
    const std::string text = ir::of_micro_batch("h.0.attn/3", micro);
    const ir::OfMicroBatch read = ir::parse_micro_batch(text);
    CHECK(read.name == "h.0.attn/3");
    CHECK(read.micro_batch == micro);
  }
  for (const char* name :
       {"", "a", "a@", "a@0", "a@01", "a@-2", "a@-01", "a@b", "a@1b", "a@99999999999", "a@2097152"}) {
    INFO(name);
    CHECK(ir::parse_micro_batch(name).name == name);
    CHECK(ir::parse_micro_batch(name).micro_batch == 0);
  }
}

namespace {

constexpr std::string_view two_micro_batches = R"(program two {ranks=2}
input @x : f32[4]
parameter @w : f32[4]
state @w.grad : f32[4]
input @x@1 : f32[4]
%0 : f32[4] = gelu(@x)  # compute forward a
%1 : f32[1] = sum(%0)  # compute forward b
%2 : f32[1] in %1 = all_reduce(%1)  # reduce sync metrics
%3 : f32[4] in @w.grad = add_to(@w.grad, %0)  # compute dw a
%4 : f32[4] = gelu(@x@1)  # compute forward a@1
%5 : f32[1] = sum(%4)  # compute forward b@1
%6 : f32[1] in %5 = all_reduce(%5)  # reduce sync metrics@1
%7 : f32[4] in @w.grad = add_to(@w.grad, %4)  # compute dw a@1
%8 : f32[4] in %7 = all_reduce(%7)  # reduce sync bucket.0
sgd(&@w, %8)  # compute update w
zero(&@w.grad)  # compute update w
output loss = %2
output aux.h.0 = %1
output loss@1 = %6
)";

}  // namespace

TEST_CASE("micro batches: the text of a program of two") {
  const auto parsed = test::good(ir::parse(two_micro_batches));
  CHECK(ir::print(*parsed) == two_micro_batches);
  CHECK(ir::micro_batches(*parsed) == 2);
  CHECK(parsed->instructions[5].label == "b");
  CHECK(parsed->instructions[5].micro_batch == 1);
  CHECK(ir::place_of(parsed->instructions[5]) == "b@1");
  CHECK(ir::place_of(parsed->instructions[0]) == "a");
  const std::vector<ir::Output>& outputs = parsed->outputs;
  REQUIRE(outputs.size() == 3);
  for (const std::size_t loss : {0u, 2u}) {
    CHECK(outputs[loss].kind == ir::OutputKind::loss);
    CHECK(outputs[loss].micro_batch == int(loss / 2));
  }
  CHECK(outputs[1].kind == ir::OutputKind::aux);
}

TEST_CASE("micro batches: updates and the sums of gradients close a step, those of the records do not") {
  const auto parsed = test::good(ir::parse(two_micro_batches));
  const std::vector<bool> closes = ir::closes_step(*parsed);
  for (std::size_t i = 0; i < closes.size(); ++i) {
    INFO(ir::print(*parsed, parsed->instructions[i]));
    CHECK(closes[i] == (i >= 8));
  }
}

// Programs that list instructions of the step before: text, what verify() refuses, and the lives of their memory.

using namespace test;

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
  const Error status = test::refused(ir::verify(parsed(text)));
  CHECK_THAT(status.message, Catch::Contains(fragment));
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
  const auto plan = test::good(ir::parse_plan(ring_plan));
  CHECK(ir::print(*plan) == ring_plan);
  CHECK(ir::verify(*plan).ok());
  for (const char* other : {"forward a | at 64", "forward c | at 128", "dx b | at 192"}) {
    const std::string text(other);
    auto edited =
        test::good(ir::parse_plan(with_other(std::string(ring_plan), text, text.substr(0, text.find("at ")) + "at 0")));
    const Error status = test::refused(ir::verify(*edited));
    CHECK_THAT(status.message, Catch::Contains("share bytes of the arena"));
  }
}

}  // namespace lancet
