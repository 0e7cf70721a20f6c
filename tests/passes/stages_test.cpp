// The cut of a rank's step into pipeline stages: text in, text out.
#include "lancet/passes/passes.h"

#include <catch2/catch.hpp>

#include "good.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"

using namespace lancet;

namespace {

// An embedding that is the head's weight around three blocks; the second block has a load.
const std::string whole = R"(program p
input @tokens : i32[2,3]
input @targets : i32[2,3]
parameter @e : f32[5,4]
parameter @p : f32[3,4]
parameter @w : f32[4,4]
%0 : f32[2,3,4] = embedding(@tokens, @e, @p) {vocabulary=5}  # compute forward wte
%1 : f32[2,3,4] = gelu(%0)  # compute forward h.0.mlp
%2 : f32[2,3,4] = linear(%1, @w)  # compute forward h.1.mlp
%3 : f32[2,3,4] = add(%2, %0)  # compute forward h.2.mlp
%4 : f32[2,3,5] = linear(%3, @e)  # compute forward lm_head
%5 : f32[2,3,5] = gelu(%4)  # compute forward lm_head.loss
%6 : f32[5,4] = linear_dw(%5, %3)  # compute dw lm_head
%7 : f32[2,3,4] = linear_dx(%5, @e)  # compute dx lm_head
%8 : f32[4,4] = linear_dw(%7, %1)  # compute dw h.1.mlp
%9 : f32[2,3,4] = linear_dx(%7, @w)  # compute dx h.1.mlp
%10 : f32[2,3,4] = add(%9, %7)  # compute dx h.0.mlp
%11 : f32[5,4] in %6 = embedding_dw(%10, @tokens, %6) {vocabulary=5}  # compute dw wte
%12 : f32[3,4] = position_dw(%10) {positions=3}  # compute dw wte
output loss = %5
output load.h.1 = %2
output grad.e = %11
output grad.p = %12
output grad.w = %8
)";

ir::Program parsed(const std::string& text) {
  const auto program = test::good(ir::parse(text));
  test::good(ops::verify(*program));
  return *program;
}

std::vector<std::string> cut(const std::string& text, const std::vector<int>& first_blocks) {
  ir::Mesh mesh;
  mesh[ir::Axis::stage] = int(first_blocks.size());
  std::vector<std::string> stages;
  for (const passes::StageProgram& stage : passes::cut_stages(parsed(text), mesh, first_blocks)) {
    test::good(ops::verify(stage.program));
    stages.push_back(ir::print(stage.program));
    for (const std::string& copy : stage.copies) stages.back() += "copy " + copy + "\n";
  }
  return stages;
}

}  // namespace

TEST_CASE("stages: labels say blocks") {
  CHECK(ir::block_of("h.12.attn.c_attn") == 12);
  CHECK(ir::block_of("h.3") == 3);
  for (const char* label : {"wte", "lm_head.loss", "h.x", "h.", "h.-1.a", "h.1x", ""}) CHECK(!ir::block_of(label));
}

TEST_CASE("stages: one stage is the program as it is") { CHECK(cut(whole, {0})[0] == ir::print(parsed(whole))); }

TEST_CASE("stages: three stages, with a value that passes through the second one") {
  const auto stages = cut(whole, {0, 1, 2});
  REQUIRE(stages.size() == 3);
  CHECK(stages[0] == R"(program p
input @tokens : i32[2,3]
parameter @e : f32[5,4]
parameter @p : f32[3,4]
%0 : f32[2,3,5] partial{stage} = no_share() {dtype=f32, shape="2,3,5"}  # compute forward loss
%1 : f32[2,3,4] partial{stage} = no_share() {dtype=f32, shape="2,3,4"}  # compute forward load.h.1
%2 : f32[2,3,4] = embedding(@tokens, @e, @p) {vocabulary=5}  # compute forward wte
send_next(%2)  # send_next forward wte
%3 : f32[2,3,4] = gelu(%2)  # compute forward h.0.mlp
send_next(%3)  # send_next forward h.0.mlp
%4 : f32[2,3,4] = receive_next() {dtype=f32, shape="2,3,4"}  # receive_next dx lm_head
%5 : f32[2,3,4] = receive_next() {dtype=f32, shape="2,3,4"}  # receive_next dx h.1.mlp
%6 : f32[2,3,4] = add(%5, %4)  # compute dx h.0.mlp
%7 : f32[5,4] = embedding_dw(%6, @tokens) {vocabulary=5}  # compute dw wte
%8 : f32[3,4] = position_dw(%6) {positions=3}  # compute dw wte
%9 : f32[5,4] in %7 = all_reduce(%7) {axes=stage, stages="0,2"}  # reduce sync e
output loss = %0
output load.h.1 = %1
output grad.e = %9
output grad.p = %8
)");
  CHECK(stages[1] == R"(program p
parameter @w : f32[4,4]
%0 : f32[2,3,5] partial{stage} = no_share() {dtype=f32, shape="2,3,5"}  # compute forward loss
%1 : f32[2,3,4] = receive_previous() {dtype=f32, shape="2,3,4"}  # receive_previous forward wte
send_next(%1)  # send_next forward wte
%2 : f32[2,3,4] = receive_previous() {dtype=f32, shape="2,3,4"}  # receive_previous forward h.0.mlp
%3 : f32[2,3,4] partial{stage} = linear(%2, @w)  # compute forward h.1.mlp
send_next(%3)  # send_next forward h.1.mlp
%4 : f32[2,3,4] = receive_next() {dtype=f32, shape="2,3,4"}  # receive_next dx lm_head
send_previous(%4)  # send_previous dx lm_head
%5 : f32[4,4] = linear_dw(%4, %2)  # compute dw h.1.mlp
%6 : f32[2,3,4] = linear_dx(%4, @w)  # compute dx h.1.mlp
send_previous(%6)  # send_previous dx h.1.mlp
output loss = %0
output load.h.1 = %3
output grad.w = %5
)");
  CHECK(stages[2] == R"(program p
parameter @e : f32[5,4]
%0 : f32[2,3,4] partial{stage} = no_share() {dtype=f32, shape="2,3,4"}  # compute forward load.h.1
%1 : f32[2,3,4] = receive_previous() {dtype=f32, shape="2,3,4"}  # receive_previous forward wte
%2 : f32[2,3,4] = receive_previous() {dtype=f32, shape="2,3,4"}  # receive_previous forward h.1.mlp
%3 : f32[2,3,4] = add(%2, %1)  # compute forward h.2.mlp
%4 : f32[2,3,5] = linear(%3, @e)  # compute forward lm_head
%5 : f32[2,3,5] partial{stage} = gelu(%4)  # compute forward lm_head.loss
%6 : f32[5,4] = linear_dw(%5, %3)  # compute dw lm_head
%7 : f32[2,3,4] = linear_dx(%5, @e)  # compute dx lm_head
send_previous(%7)  # send_previous dx lm_head
%8 : f32[5,4] in %6 = all_reduce(%6) {axes=stage, stages="0,2"}  # reduce sync e
output loss = %5
output load.h.1 = %0
output grad.e = %8
copy e
)");
}

TEST_CASE("stages: sums in a state begin with the state on each stage") {
  std::string text = whole;
  const auto replace = [&](const std::string& from, const std::string& to) {
    const auto at = text.find(from);
    REQUIRE(at != text.npos);
    text.replace(at, from.size(), to);
  };
  replace("parameter @w : f32[4,4]\n", "parameter @w : f32[4,4]\nstate @e.grad : f32[5,4]\n");
  replace("%6 : f32[5,4] = linear_dw(%5, %3)", "%6 : f32[5,4] in @e.grad = linear_dw(%5, %3, @e.grad)");
  const auto stages = cut(text, {0, 2});
  CHECK(stages[0].find(" in @e.grad = embedding_dw(") != std::string::npos);
  CHECK(stages[1].find(" in @e.grad = linear_dw(") != std::string::npos);
}

TEST_CASE("stages: the last stage may have the head alone") {
  const auto stages = cut(whole, {0, 3});
  REQUIRE(stages.size() == 2);
  CHECK(stages[0].find("forward h.2.mlp") != std::string::npos);
  CHECK(stages[0].find("forward lm_head") == std::string::npos);
  CHECK(stages[1].find("forward lm_head") != std::string::npos);
  CHECK(stages[1].find("compute forward h.") == std::string::npos);
  CHECK(stages[1].find("parameter @w") == std::string::npos);
}

TEST_CASE("stages: logits cross back to every stage") {
  const std::string text = R"(program p
parameter @e : f32[5,4]
input @x : f32[1,1,4]
%0 : f32[1,1,4] = gelu(@x)  # compute forward h.0.mlp
%1 : f32[1,1,4] = gelu(%0)  # compute forward h.1.mlp
%2 : f32[1,1,4] = gelu(%1)  # compute forward h.2.mlp
%3 : f32[1,1,5] = linear(%2, @e)  # compute forward lm_head
output logits = %3
)";
  const auto stages = cut(text, {0, 1, 2});
  REQUIRE(stages.size() == 3);
  CHECK(stages[0] == R"(program p
input @x : f32[1,1,4]
%0 : f32[1,1,4] = gelu(@x)  # compute forward h.0.mlp
send_next(%0)  # send_next forward h.0.mlp
%1 : f32[1,1,5] = receive_next() {dtype=f32, shape="1,1,5"}  # receive_next forward lm_head
output logits = %1
)");
  CHECK(stages[1] == R"(program p
%0 : f32[1,1,4] = receive_previous() {dtype=f32, shape="1,1,4"}  # receive_previous forward h.0.mlp
%1 : f32[1,1,4] = gelu(%0)  # compute forward h.1.mlp
send_next(%1)  # send_next forward h.1.mlp
%2 : f32[1,1,5] = receive_next() {dtype=f32, shape="1,1,5"}  # receive_next forward lm_head
send_previous(%2)  # send_previous forward lm_head
output logits = %2
)");
  CHECK(stages[2] == R"(program p
parameter @e : f32[5,4]
%0 : f32[1,1,4] = receive_previous() {dtype=f32, shape="1,1,4"}  # receive_previous forward h.1.mlp
%1 : f32[1,1,4] = gelu(%0)  # compute forward h.2.mlp
%2 : f32[1,1,5] = linear(%1, @e)  # compute forward lm_head
send_previous(%2)  # send_previous forward lm_head
output logits = %2
)");
}
