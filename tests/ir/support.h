// Helpers of the module's tests: texts that must parse, and Programs compared field by field.
#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "good.h"
#include "lancet/ir/plan.h"

namespace lancet::test {

inline ir::Program parsed(std::string_view text) {
  auto program = test::good(ir::parse(text));
  return *program;
}

inline ir::Plan parsed_plan(std::string_view text) {
  auto plan = test::good(ir::parse_plan(text));
  return *plan;
}

// Compares everything except ids: the ids of named tensors move to the front when a text is read.
inline void require_same(const ir::Program& a, const ir::Program& b) {
  REQUIRE(a.name == b.name);
  REQUIRE(a.attributes == b.attributes);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const ir::Tensor &x = a.tensors[i], &y = b.tensors[i];
    INFO("tensor " << i);
    REQUIRE(x.type == y.type);
    REQUIRE(x.kind == y.kind);
    REQUIRE(x.name == y.name);
    REQUIRE(x.number == y.number);
    REQUIRE(x.storage == y.storage);
    REQUIRE(x.slice == y.slice);
    REQUIRE(x.state == y.state);
    REQUIRE(x.sharding == y.sharding);
    REQUIRE(x.flat_shard == y.flat_shard);
  }
  REQUIRE(a.instructions.size() == b.instructions.size());
  for (std::size_t i = 0; i < a.instructions.size(); ++i) {
    const ir::Instruction &x = a.instructions[i], &y = b.instructions[i];
    INFO("instruction " << i);
    REQUIRE(x.op == y.op);
    REQUIRE(x.operands == y.operands);
    REQUIRE(x.results == y.results);
    REQUIRE(x.writes == y.writes);
    REQUIRE(x.attributes == y.attributes);
    REQUIRE(x.stream == y.stream);
    REQUIRE(x.role == y.role);
    REQUIRE(x.label == y.label);
  }
  REQUIRE(a.outputs.size() == b.outputs.size());
  for (std::size_t i = 0; i < a.outputs.size(); ++i) {
    REQUIRE(a.outputs[i].name == b.outputs[i].name);
    REQUIRE(a.outputs[i].tensor == b.outputs[i].tensor);
    REQUIRE(a.outputs[i].kind == b.outputs[i].kind);
  }
}

// Every feature of the text form, in the printer's spelling.
inline const std::string every_feature =
    R"(program demo-1.x {ranks=2, scale=0.5, less=-3, tiny=1e-05, huge=1e+20, word=bf16, whole=2.0, digits="0012"}
input @tokens : i32[2,4]
input @long : i64[3]
parameter @w : bf16[8,4]
parameter @h.0.e.w : f32[2{expert},3]
state @w.m : f32[8,4]
state @h.0.e.w.m : f32[2{expert},3]
%0 : bf16[2,4,8] = make(@tokens, @w, @long)  # compute forward h.0
%3 : i32[8,4], %4 : f32[2,4], %5 : f32[] = gate(%0) {capacity=5, factor=1.25, kind=switch}  # compute forward h.0.gate
%6 : i32[2,3] = counts(%3)  # expert forward
%7 : bf16[2,4,8] in %0 = scale(%0, %4)  # compute dx h.0.scale
%9 : bf16[1,4,8] in %7, %10 : f32[1,2,3,4,5,6] = split(%7) {a=-0.0}  # compute dw
%12 : f32[8,4] = sum(%5, %9, %9)  # reduce sync bucket.0
%2000 : f32[8,4] in @w.m = accumulate(%12, @w.m)  # compute dw w
note()  # expert forward
update(&@w, %2000, &@h.0.e.w, @h.0.e.w.m, %6, %10)  # compute update w
output loss = %5
output w = @w
output grad.w = %2000
)";

// Every form of a sharding.
inline const std::string every_sharding = R"(program shardings
input @x : bf16[64{data,expert},512,768]
input @scalar : f32[] whole
parameter @w : bf16[3x1024{tensor},768]
parameter @e : f32[8{expert},4,4] partial{data}
state @plain : f32[8]
%0 : bf16[64{data,expert},512,3x1024{tensor}], %1 : f32[768] whole = f(@x, @w)  # compute forward a
%2 : f32[3x1024{tensor},768] partial{data,expert} = g(%0, @e)  # compute dw b
view %3 : f32[4{data}] in %2 + 16
%4 : f32[4] partial{tensor} in %3 = h(%3)  # compute forward c
output y = %4
)";

// The same for a Plan.
inline const std::string plan_features = R"(plan {policy=sequential, ranks=2, predicted_ms=1.5}
arena 4096
program p {layers=1}
input @x : f32[16]
state @s : f32[16]
[0] %0 : f32[16] = gelu(@x)  # compute forward a | at 0
[1] %1 : f32[16], %2 : f32[8] in %0 = split(%0)  # compute forward b | at 64 - | ms 0.125 0.5
[2] %3 : f32[16] in %1 = all_reduce(%1)  # reduce sync c | wait 1 | at -
[3] %4 : f32[16] = all_to_all(%2)  # expert forward d | wait 1 | at 128 | ms 1.0 1e+20
[4] update(&@s, %3, %4)  # compute update e | wait 2 3
output y = %4
)";

// Tensors that are slices of others, and wholes that are made in parts.
inline const std::string every_view = R"(program views
input @x : f32[16]
state @s : f32[16]
%0 : f32[16] = f(@x)  # compute forward
view %1 : f32[8] in %0 + 0
view %3 : f32[16]
%4 : f32[8] in %3 + 0 = g(%1)  # compute forward a/0
view %2 : f32[8] in %0 + 32
%5 : f32[8] in %3 + 32 = g(%2)  # compute forward a/1
view %6 : f32[4,4]
%7 : f32[4,4] in %6 part 0 of 2 = d(%4)  # compute forward b/0
%8 : f32[4,4] in %6 part 1 of 2 = d(%5)  # compute forward b/1
h(%3, %6)  # compute forward
view %20 : f32[4,4] in %6 part 0 of 2
view %9 : f32[4,4] in %6
%10 : f32[4,4] in %9 part 0 of 2 = k(%20)  # compute dx
%11 : f32[4,4] in %9 part 1 of 2 = k(%8)  # expert dx
view %14 : f32[8] in @s + 16
view %12 : f32[4] in %14 + 8
update(&%12, %9)  # compute update
view %13 : f32[4] in %9 + 48
output y = %3
output z = %13
)";

// The two streams make the parts of %3; the reduce stream reads it as a whole while compute continues.
inline const std::string plan_views = R"(plan {policy=test}
arena 320
program views
input @x : f32[16]
[0] %0 : f32[16] = f(@x)  # compute forward | at 0
view %1 : f32[8] in %0 + 0
view %3 : f32[16] | at 64
[1] %4 : f32[8] in %3 + 0 = g(%1)  # compute forward a/0 | at -
view %2 : f32[8] in %0 + 32
[2] %5 : f32[8] in %3 + 32 = g(%2)  # expert forward a/1 | wait 0 | at -
[3] %6 : f32[16] = sum(%3)  # reduce sync b | wait 1 2 | at 128
[4] %7 : f32[16] = f(@x)  # compute forward c | at 192
[5] %8 : f32[16] = f(%7)  # compute forward d | at 256
[6] %9 : f32[16] = f(%8, %6)  # compute forward e | wait 3 | at 64
view %10 : f32[8] in %9 + 32
output y = %10
)";

}  // namespace lancet::test
