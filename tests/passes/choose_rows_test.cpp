// The rows by which ranks share an instruction: what decides is the price of the changes of sharding.
#include "passes/choose_rows.h"

#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;
using ir::Axis;
using ir::Sharding;

namespace {

// What each of 4 ranks along `tensor` computes of the one instruction of a Program: "[4,8{tensor}] [8{tensor}] ->
// [4,8 partial{tensor}]", without types.
std::string share_of(std::string_view text, const passes::ReshardCost& cost = passes::bytes_sent) {
  const ir::Program logical = program(text);
  ir::Mesh mesh;
  mesh[Axis::tensor] = 4;
  const ir::Instruction& at = logical.instructions[0];
  passes::ShardedInstruction sharded{at, {}, {}};
  for (const ir::TensorId id : at.operands) sharded.operands.push_back({logical.type(id), {*logical[id].sharding}});
  for (const ir::TensorId id : at.results) sharded.results.push_back({logical.type(id), {*logical[id].sharding}});
  const auto share = passes::RowChooser(mesh, cost).choose(sharded);
  if (!share.ok()) return share.error().message;
  std::string shown;
  for (std::size_t i = 0; i < at.operands.size(); ++i)
    shown += fmt::format("[{}] ", to_string(logical.type(at.operands[i]).shape, share->operands[i]));
  shown += "->";
  for (std::size_t r = 0; r < at.results.size(); ++r)
    shown += fmt::format(" [{}]", to_string(logical.type(at.results[r]).shape, share->results[r]));
  return shown;
}

std::string linear(const char* x, const char* w, const char* y) {
  return fmt::format(
      "input @x : f32{}\nparameter @w : f32{}\n%0 : f32{} = linear(@x, @w)  # compute forward a\n"
      "output y = %0\n",
      x, w, y);
}

}  // namespace

TEST_CASE("choose rows: sums of a small result, gathers of a small operand") {
  // GShard's rule for a split contraction: sum if the operand is larger than the result.
  CHECK(share_of(linear("[4,64{tensor}]", "[8,64] whole", "[4,8] whole")) ==
        "[4,64{tensor}] [8,64{tensor}] -> [4,8 partial{tensor}]");
  CHECK(share_of(linear("[4,8{tensor}]", "[512,8] whole", "[4,512] whole")) ==
        "[4,8 whole] [512,8 whole] -> [4,512 whole]");
  // A result that is wanted split is made split.
  CHECK(share_of(linear("[4,8{tensor}]", "[512,8] whole", "[4,512{tensor}]")) ==
        "[4,8 whole] [512{tensor},8] -> [4,512{tensor}]");
}

TEST_CASE("choose rows: the caller's prices decide") {
  auto no_sums = [](const passes::Reshard& step) {
    return step.kind == passes::Reshard::Kind::sum_shards ? 1e6 : passes::bytes_sent(step);
  };
  CHECK(share_of(linear("[4,64{tensor}]", "[8,64] whole", "[4,8] whole"), no_sums) ==
        "[4{tensor},64] [8,64 whole] -> [4{tensor},8]");  // an all-to-all, and a gather of the small result
}

TEST_CASE("choose rows: what costs nothing") {
  // Copies on all ranks stay copies; a split is kept; of equal prices the one that computes less.
  CHECK(share_of(linear("[4,8] whole", "[8,8] whole", "[4,8] whole")) == "[4,8 whole] [8,8 whole] -> [4,8 whole]");
  CHECK(share_of(linear("[4{tensor},8]", "[8,8] whole", "[4{tensor},8]")) ==
        "[4{tensor},8] [8,8 whole] -> [4{tensor},8]");
  CHECK(share_of(linear("[4,8] whole", "[8,8] whole", "[4{tensor},8]")) ==
        "[4{tensor},8] [8,8 whole] -> [4{tensor},8]");
  CHECK(share_of(linear("[4,8] whole", "[2x4{tensor},8]", "[4,2x4{tensor}]")) ==
        "[4,8 whole] [2x4{tensor},8] -> [4,2x4{tensor}]");
}

TEST_CASE("choose rows: several versions at hand, memory that keeps its sharding, two axes") {
  const Sharding whole = Sharding::whole(2), rows{{{{Axis::tensor}}, {}}, {}}, columns{{{}, {{Axis::tensor}}}, {}};
  const Sharding both{{{{Axis::data}}, {{Axis::tensor}}}, {}};
  const ir::Program gelu = program("input @x : f32[8,4]\n%0 : f32[8,4] = gelu(@x)  # compute forward a\n");
  const ir::Program zero = program("state @x : f32[8,4]\nzero(&@x)  # compute forward a\n");
  const ir::TensorType type{DType::f32, {8, 4}};
  auto taken = [&](const ir::Program& of, passes::ShardedOperand x, std::vector<passes::ShardedOperand> results) {
    passes::RowChooser chooser(ir::Mesh{{1, 2, 1, 2}}, passes::bytes_sent);
    const auto share = chooser.choose({of.instructions[0], {std::move(x)}, std::move(results)});
    return share.ok() ? to_string(type.shape, share->operands[0]) : share.error().message;
  };
  // The version that needs no step.
  CHECK(taken(gelu, {type, {columns, rows}}, {{type, {rows}}}) == "8{tensor},4");
  CHECK(taken(gelu, {type, {rows, columns}}, {{type, {columns}}}) == "8,4{tensor}");
  // A version that is whole costs nothing to split.
  CHECK(taken(gelu, {type, {columns, whole}}, {{type, {rows}}}) == "8{tensor},4");
  CHECK(taken(gelu, {type, {whole}}, {{type, {both}}}) == "8{data},4{tensor}");
  // A result that nothing reads has no price: the operand stays as it is.
  CHECK(taken(gelu, {type, {both}}, {{type, {}}}) == "8{data},4{tensor}");
  CHECK(taken(zero, {type, {whole}, {}, true}, {}) == "8,4 whole");
  CHECK(taken(zero, {type, {rows}, {}, true}, {}) ==
        "a: expected a way to split zero over tensor that leaves what it updates in place as it is sharded, found "
        "none");
}

TEST_CASE("choose rows: attributes and packed heads go with the row") {
  auto attention = [](int heads) {
    return fmt::format(
        "input @qkv : f32[2,4,3x16{{tensor}}]\n%0 : f32[2,4,16{{tensor}}], %1 : f32[2,{0},4] whole = "
        "attention(@qkv) {{heads={0}}}  # compute forward a\noutput y = %0\n",
        heads);
  };
  CHECK(share_of(attention(4)) == "[2,4,3x16{tensor}] -> [2,4,16{tensor}] [2,4{tensor},4]");
  CHECK(share_of(attention(2)) == "[2,4,48 whole] -> [2,4,16 whole] [2,2,4 whole]");  // 2 heads are not split in 4
}
