// What a partition row makes of an instruction's attributes and types.
#include <catch2/catch.hpp>

#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"

using namespace lancet;

namespace {

// The program's last instruction has shares of n by row `row` of its op.
bool shares(const char* text, std::size_t row, std::int64_t n) {
  const auto program = ir::parse(text);
  if (!program.ok()) FAIL(program.error().message);
  REQUIRE(ops::verify(*program).ok());
  const ir::Instruction& at = program->instructions.back();
  return ops::has_shares(*program, at, ops::op(at.op).partition[row], n);
}

}  // namespace

TEST_CASE("shares: a row divides the attributes that it names") {
  const ir::Attributes whole{{"heads", 7}, {"tokens", 9}, {"deterministic", 0}, {"eps", 0.5}};
  const ops::PartitionRow heads{{0}, {0}, ops::SplitIn::space, {"heads", "batch"}};
  CHECK(ops::attributes_of_share(heads, whole, 2) ==
        ir::Attributes{{"heads", 3}, {"tokens", 9}, {"deterministic", 0}, {"eps", 0.5}});
  CHECK(ops::attributes_of_share(heads, whole, 1) == whole);
  CHECK(ops::attributes_of_share({{0}, {0}}, whole, 2) == whole);
}

TEST_CASE("shares: an attribute is divided if some row of the op in time divides it") {
  auto divided = [](const char* op, const char* attribute) {
    ir::Instruction at;
    at.op = op;
    return ops::is_divided(at, attribute);
  };
  CHECK(divided("expert_linear", "tokens"));
  CHECK(divided("gelu", "tokens"));
  CHECK(divided("all_to_all", "tokens"));
  CHECK(divided("combine", "batch"));
  CHECK(divided("dispatch_dx", "batch"));
  CHECK_FALSE(divided("attention", "heads"));  // in space only, as the next three
  CHECK_FALSE(divided("slots", "groups"));
  CHECK_FALSE(divided("embedding_dw", "vocabulary"));
  CHECK_FALSE(divided("logit_stats", "blocks"));
  CHECK_FALSE(divided("logit_stats", "vocabulary"));
  CHECK_FALSE(divided("linear", "tokens"));
  CHECK_FALSE(divided("slots", "capacity"));
  CHECK_FALSE(divided("cross_entropy_train", "total_tokens"));
  CHECK_FALSE(divided("no_such_op", "batch"));
}

TEST_CASE("shares: n divides the axes, and the shares fit the op") {
  const char* attention =
      "input @qkv : f32[4,6,36]\n"
      "%0 : f32[4,6,12], %1 : f32[4,6,6] = attention(@qkv) {heads=6}  # compute forward\n";
  for (std::int64_t n : {1, 2, 4}) CHECK(shares(attention, 0, n));  // the batch
  CHECK_FALSE(shares(attention, 0, 3));
  for (std::int64_t n : {1, 2, 3, 6}) CHECK(shares(attention, 1, n));  // heads
  for (std::int64_t n : {4, 12}) CHECK_FALSE(shares(attention, 1, n));
  const char* grouped =
      "input @qkv : f32[4,6,40]\n"
      "%0 : f32[4,6,24], %1 : f32[4,12,6] = attention(@qkv) {heads=4, group=3}  # compute forward\n";
  for (std::int64_t n : {1, 2, 4}) CHECK(shares(grouped, 1, n));  // heads of keys
  for (std::int64_t n : {3, 8, 12}) CHECK_FALSE(shares(grouped, 1, n));

  const char* linear =
      "input @x : f32[4,6,8]\nparameter @w : f32[10,8]\n%0 : f32[4,6,10] = linear(@x, @w)  # compute forward\n";
  CHECK(shares(linear, 1, 2));  // the sequence
  CHECK(shares(linear, 2, 5));  // columns
  CHECK(shares(linear, 3, 8));  // the contraction
  const char* rows =
      "input @x : f32[4,8]\nparameter @w : f32[8,8]\n%0 : f32[4,8] = linear(@x, @w)  # compute forward\n";
  CHECK_FALSE(shares(rows, 1, 2));  // axis 1 is the contraction's
  CHECK(shares(rows, 2, 2));
  CHECK(shares(rows, 3, 2));
  const char* vector = "input @x : f32[8]\n%0 : f32[8] = gelu(@x)  # compute forward\n";
  CHECK(shares(vector, 0, 2));
  CHECK_FALSE(shares(vector, 1, 1));  // there is no axis 1
}

TEST_CASE("shares: all-to-alls split in time only, sums over rows in space only") {
  for (const char* op : {"all_to_all_counts", "all_to_all", "all_to_all_back"})
    for (const ops::PartitionRow& row : ops::op(op).partition) CHECK_FALSE(row.in_space());
  for (const char* op : {"embedding_dw", "position_dw", "layer_norm_dw", "router_dw"})
    for (const ops::PartitionRow& row : ops::op(op).partition) CHECK_FALSE(row.in_time());
}
