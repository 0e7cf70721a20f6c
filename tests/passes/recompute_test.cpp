// Values of the forward pass that the backward pass makes again.
#include "lancet/passes/passes.h"

#include <algorithm>
#include <vector>

#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr std::string_view ffn = R"(program ffn
parameter @x : f32[2,3,4]
parameter @g : f32[4]
parameter @b : f32[4]
parameter @w : f32[8,4]
parameter @v : f32[4,8]
input @dy : f32[2,3,4]
%0 : f32[2,3,4], %1 : f32[2,3,4], %2 : f32[2,3,2] = add_layer_norm(@x, @x, @g, @b) {eps=1e-05}  # compute forward ln
%3 : f32[2,3,8] = linear(%1, @w)  # compute forward fc
%4 : f32[2,3,8] = gelu(%3)  # compute forward gelu
%5 : f32[2,3,4] = linear(%4, @v)  # compute forward proj
%6 : f32[4,8] = linear_dw(@dy, %4) {bias=0}  # compute dw proj
%7 : f32[2,3,8] = linear_dx(@dy, @v)  # compute dx proj
%8 : f32[2,3,8] in %7 = gelu_dx(%7, %3)  # compute dx gelu
%9 : f32[8,4] = linear_dw(%8, %1) {bias=0}  # compute dw fc
%10 : f32[2,3,4] = layer_norm_dx(@dy, %0, @g, %2)  # compute dx ln
output y = %5
output grad.v = %6
output grad.w = %9
output grad.x = %10
)";

// The candidates whose labels are listed.
std::vector<bool> chosen(const ir::Program& p, const std::vector<std::string>& labels) {
  std::vector<bool> result;
  for (const ir::Instruction& at : p.instructions)
    result.push_back(at.role == ir::Role::forward && std::ranges::count(labels, at.label) > 0);
  return result;
}

ir::Program recomputed(const ir::Program& step, const std::vector<bool>& chosen) {
  return passes::Recomputation(step).run(chosen);
}

// The lines of the program from the first one of the backward pass on.
std::string backward_of(const ir::Program& p, std::size_t forward) {
  std::string text;
  for (std::size_t i = forward; i < p.instructions.size(); ++i) text += ir::print(p, p.instructions[i]) + "\n";
  return text;
}

std::vector<std::string> labels_of(const ir::Program& p, const std::vector<bool>& which) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < which.size(); ++i)
    if (which[i]) labels.push_back(p.instructions[i].label);
  return labels;
}

}  // namespace

TEST_CASE("recompute: a value is made again right before its first reader, which takes the copy") {
  const ir::Program step = program(ffn);
  const ir::Program result = recomputed(step, chosen(step, {"gelu"}));
  require_sound(ops::verify(result));
  CHECK(backward_of(result, 4) == R"(%11 : f32[2,3,8] = gelu(%3)  # compute recompute gelu
%6 : f32[4,8] = linear_dw(@dy, %11) {bias=0}  # compute dw proj
%7 : f32[2,3,8] = linear_dx(@dy, @v)  # compute dx proj
%8 : f32[2,3,8] in %7 = gelu_dx(%7, %3)  # compute dx gelu
%9 : f32[8,4] = linear_dw(%8, %1) {bias=0}  # compute dw fc
%10 : f32[2,3,4] = layer_norm_dx(@dy, %0, @g, %2)  # compute dx ln
)");
}

TEST_CASE("recompute: a chain is made again in order, a norm from the sum that is kept, each value once") {
  const ir::Program step = program(ffn);
  const ir::Program result = recomputed(step, chosen(step, {"ln", "fc", "gelu"}));
  CHECK(backward_of(program(text_of(result)), 4) ==
        R"(%11 : f32[2,3,4], %12 : f32[2,3,2] = layer_norm(%0, @g, @b) {eps=1e-05}  # compute recompute ln
%13 : f32[2,3,8] = linear(%11, @w)  # compute recompute fc
%14 : f32[2,3,8] = gelu(%13)  # compute recompute gelu
%6 : f32[4,8] = linear_dw(@dy, %14) {bias=0}  # compute dw proj
%7 : f32[2,3,8] = linear_dx(@dy, @v)  # compute dx proj
%8 : f32[2,3,8] in %7 = gelu_dx(%7, %13)  # compute dx gelu
%9 : f32[8,4] = linear_dw(%8, %11) {bias=0}  # compute dw fc
%10 : f32[2,3,4] = layer_norm_dx(@dy, %0, @g, %12)  # compute dx ln
)");
}

TEST_CASE("recompute: with nothing chosen the step stays as it is") {
  const ir::Program step = program(ffn);
  CHECK(ir::print(recomputed(step, chosen(step, {}))) == ir::print(step));
}

TEST_CASE("recompute: candidates are read by the backward pass and made from what nothing overwrites") {
  const ir::Program step = program(ffn);
  CHECK(labels_of(step, passes::Recomputation(step).candidates()) == std::vector<std::string>{"ln", "fc", "gelu"});
  // Cross entropy overwrites the logits; the gate decides once.
  const ir::Program whole = passes::autodiff(program(moe));
  const passes::Recomputation values(whole);
  CHECK(labels_of(whole, values.candidates()) == std::vector<std::string>{"dispatch", "fc", "gelu"});
}

TEST_CASE("recompute: what another rank has sent is kept, and no product of gathered shards is made again") {
  const ir::Program rank = of_rank(passes::autodiff(program(moe)), ir::of_experts(2));
  // The buffer that dispatch fills is sent and not read again.
  CHECK(labels_of(rank, passes::Recomputation(rank).candidates()) == std::vector<std::string>{"fc", "gelu"});
  const ir::Program step = recomputed(rank, passes::Recomputation(rank).candidates());
  for (const ir::Instruction& at : step.instructions)
    if (at.role == ir::Role::recompute) CHECK(at.stream == ir::Stream::compute);
  require_golden("recompute_moe.ir", text_of(step));
}

TEST_CASE("recompute: an instruction that is no candidate is a broken invariant") {
  const ir::Program step = program(ffn);
  CHECK_THROWS_AS(recomputed(step, {true}), InternalError);
  const ir::Program whole = passes::autodiff(program(moe));
  CHECK_THROWS_AS(recomputed(whole, chosen(whole, {"wte"})), InternalError);
}
