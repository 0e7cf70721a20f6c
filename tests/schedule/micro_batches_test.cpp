// The schedule of several micro batches from that of one: text in, text out.
#include <catch2/catch.hpp>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"

namespace lancet {
namespace {

// A weight gradient that waits for the message beside it, which its data does not need.
schedule::Candidate one_micro_batch() {
  const auto parsed = ir::parse(R"(program one {ranks=2}
input @x : f32[4]
parameter @w : f32[4]
state @w.grad : f32[4]
input @schedule : f32[4]
view %9 : f32[4]
%0 : f32[2] in %9 + 0 = first(@x)  # compute forward a/0
%1 : f32[2] in %9 + 8 = second(@x)  # compute forward a/1
%2 : f32[4] = all_to_all(%9)  # expert forward b
%3 : f32[4] in @w.grad = add_to(@w.grad, %9)  # compute dw a
%4 : f32[4] in %2 = gelu(%2)  # compute forward c
%5 : f32[4] in %4 = all_reduce(%4)  # reduce sync metrics
%6 : f32[4] in %3 = all_reduce(%3)  # reduce sync bucket.0
%7 : f32[2] = norm(%6)  # compute update norm
sgd(&@w, %6, @schedule)  # compute update w
zero(&@w.grad)  # compute update w
output loss = %5
output bias.h.0 = @w
output grad_norm = %7
)");
  if (!parsed.ok()) FAIL(parsed.error().message);
  schedule::Candidate one;
  one.how = "by hand";
  one.program = *parsed;
  one.needed = ir::dependencies(one.program);
  one.needed[3].push_back({2});
  one.op_costs.resize(one.program.instructions.size());
  for (std::size_t i = 0; i < one.op_costs.size(); ++i) one.op_costs[i].ms = double(i);
  return one;
}

}  // namespace

TEST_CASE("micro batches: each has its own copies, and only the last closes the step") {
  const schedule::Candidate two = schedule::in_micro_batches(one_micro_batch(), 2);
  CHECK(ir::verify(two.program).ok());
  CHECK(ir::print(two.program) == R"(program one {ranks=2}
input @x : f32[4]
parameter @w : f32[4]
state @w.grad : f32[4]
input @schedule : f32[4]
input @x@1 : f32[4]
view %0 : f32[4]
%1 : f32[2] in %0 + 0 = first(@x)  # compute forward a/0
%2 : f32[2] in %0 + 8 = second(@x)  # compute forward a/1
%3 : f32[4] = all_to_all(%0)  # expert forward b
%4 : f32[4] in @w.grad = add_to(@w.grad, %0)  # compute dw a
%5 : f32[4] in %3 = gelu(%3)  # compute forward c
%6 : f32[4] in %5 = all_reduce(%5)  # reduce sync metrics
view %7 : f32[4]
%8 : f32[2] in %7 + 0 = first(@x@1)  # compute forward a/0@1
%9 : f32[2] in %7 + 8 = second(@x@1)  # compute forward a/1@1
%10 : f32[4] = all_to_all(%7)  # expert forward b@1
%11 : f32[4] in @w.grad = add_to(@w.grad, %7)  # compute dw a@1
%12 : f32[4] in %10 = gelu(%10)  # compute forward c@1
%13 : f32[4] in %12 = all_reduce(%12)  # reduce sync metrics@1
%14 : f32[4] in %11 = all_reduce(%11)  # reduce sync bucket.0
%15 : f32[2] = norm(%14)  # compute update norm
sgd(&@w, %14, @schedule)  # compute update w
zero(&@w.grad)  # compute update w
output loss = %6
output loss@1 = %13
output bias.h.0 = @w
output grad_norm = %15
)");
}

TEST_CASE("micro batches: dependencies, costs and memory") {
  const schedule::Candidate one = one_micro_batch(), two = schedule::in_micro_batches(one, 2);
  CHECK(two.how == "by hand");
  REQUIRE(two.program.instructions.size() == 6 + 10);
  for (std::size_t i = 0; i < two.op_costs.size(); ++i) CHECK(two.op_costs[i].ms == double(i < 6 ? i : i - 6));
  using Needed = std::vector<ir::InstructionId>;
  CHECK(two.needed[3] == Needed{{0}, {1}, {2}});       // what the candidate adds holds in every micro batch
  CHECK(two.needed[6].empty());                        // a micro batch begins without waiting for the one before it
  CHECK(two.needed[9] == Needed{{3}, {6}, {7}, {8}});  // but adds onto its gradients
  const ir::Plan plan = schedule::plan_memory(two.program, two.needed);
  CHECK(ir::verify(plan).ok());
}

TEST_CASE("micro batches: one is the candidate itself") {
  const schedule::Candidate one = one_micro_batch();
  CHECK(ir::print(schedule::in_micro_batches(one, 1).program) == ir::print(one.program));
}

// Which tensors of a step share bytes.

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

}  // namespace lancet
