// Fusing GELU into the neighbouring products.
#include <catch2/catch.hpp>

#include "lancet/base/check.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"
#include "steps/models.h"
#include "steps/support.h"

namespace lancet {

using namespace test;

namespace {

std::vector<std::string> ops_of(const ir::Program& program) {
  std::vector<std::string> ops;
  for (const ir::Instruction& at : program.instructions) ops.push_back(at.op);
  return ops;
}

// Two layers; `between` may add more readers of GELU's argument and result.
std::string layers(std::string_view first, std::string_view between) {
  return fmt::format(R"(program layers
parameter @x : f32[2,3,4]
parameter @w : f32[8,4]
parameter @v : f32[4,8]
input @dy : f32[2,3,4]
{}
%1 : f32[2,3,8] = gelu(%0)  # compute forward gelu
%2 : f32[2,3,4] = linear(%1, @v)  # compute forward proj
%3 : f32[2,3,8] = linear_dx(@dy, @v)  # compute dx proj
{}%5 : f32[2,3,8] in %3 = gelu_dx(%3, %0)  # compute dx gelu
%6 : f32[8,4] = linear_dw(%5, @x)  # compute dw fc
output grad.w = %6
output y = %2
)",
                     first, between);
}
const std::string fc = "%0 : f32[2,3,8] = linear(@x, @w)  # compute forward fc";

}  // namespace

TEST_CASE("fuse: a dense layer's GELU, forward and backward") {
  CHECK(text_of(passes::fuse(program(layers(fc, "")))) == R"(program layers
parameter @x : f32[2,3,4]
parameter @w : f32[8,4]
parameter @v : f32[4,8]
input @dy : f32[2,3,4]
%0 : f32[2,3,8], %1 : f32[2,3,8] = linear_gelu(@x, @w)  # compute forward fc
%2 : f32[2,3,4] = linear(%1, @v)  # compute forward proj
%5 : f32[2,3,8] = linear_dx_gelu(@dy, @v, %0)  # compute dx proj
%6 : f32[8,4] = linear_dw(%5, @x)  # compute dw fc
output grad.w = %6
output y = %2
)");
}

TEST_CASE("fuse: experts, over the same rows") {
  const auto step = passes::autodiff(program(moe));
  const auto before = ops_of(step), after = ops_of(passes::fuse(step));
  const auto count = [](const std::vector<std::string>& ops, const char* op) {
    return std::count(ops.begin(), ops.end(), op);
  };
  CHECK(after.size() + 2 == before.size());
  CHECK(count(after, "expert_linear_gelu") == 1);
  CHECK(count(after, "expert_linear_dx_gelu") == 1);
  CHECK(count(after, "expert_linear") == 1);
  CHECK(count(after, "gelu") + count(after, "gelu_dx") == 0);
  require_sound(ops::verify(passes::fuse(step)));
}

TEST_CASE("fuse: values with other readers stay unfused") {
  // The gradient before GELU is read again.
  const auto read = program(layers(fc, "%4 : f32[8,4] = linear_dw(%3, @x)  # compute dw other\n"));
  CHECK(ops_of(passes::fuse(read)) ==
        std::vector<std::string>{"linear_gelu", "linear", "linear_dx", "linear_dw", "gelu_dx", "linear_dw"});
  // GELU of a value that is not a product, or of a product that streams its weights.
  for (const char* other : {"%0 : f32[2,3,8] = linear(@x, @w) {streamed=1}  # compute forward fc"})
    CHECK(ops_of(passes::fuse(program(layers(other, "")))) ==
          std::vector<std::string>{"linear", "gelu", "linear", "linear_dx_gelu", "linear_dw"});
}

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
