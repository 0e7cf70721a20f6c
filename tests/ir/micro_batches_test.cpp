// Which micro batch instructions, inputs and outputs are of, in text and in the Program.
#include "lancet/ir/micro_batches.h"

#include <catch2/catch.hpp>

#include "lancet/ir/plan.h"

using namespace lancet;

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
  const auto parsed = ir::parse(two_micro_batches);
  if (!parsed.ok()) FAIL(parsed.error().message);
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
  const auto parsed = ir::parse(two_micro_batches);
  REQUIRE(parsed.ok());
  const std::vector<bool> closes = ir::closes_step(*parsed);
  for (std::size_t i = 0; i < closes.size(); ++i) {
    INFO(ir::print(*parsed, parsed->instructions[i]));
    CHECK(closes[i] == (i >= 8));
  }
}
