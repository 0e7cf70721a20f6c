#include <catch2/catch.hpp>
#include <map>

#include "good.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"

namespace lancet {

using namespace cost;

namespace {

ir::Program parsed(const std::string& text) {
  auto program = test::good(ir::parse(text));
  return *program;
}

// Two ranks, four experts of capacity 6, 16 tokens, rows of 8 bf16.
const std::string moe = R"(program moe
input @filled : i32[4,2]
input @slots : bf16[4,6,8]
input @w : bf16[2,32,8]
input @b : f32[2,32]
%0 : i32[2,3] = all_to_all_counts(@filled) {ranks=2}  # expert forward counts
%1 : bf16[2,12,8] = all_to_all(@slots, @filled, %0)  # expert forward there
%2 : bf16[2,12,8] = all_to_all(@slots, @filled, %0) {tokens=16}  # expert forward there
%3 : bf16[4,6,8] = all_to_all_back(%2, @filled, %0) {tokens=4}  # expert forward back
%4 : bf16[2,12,32] = expert_linear(%2, @w, @b, %0) {tokens=16}  # compute forward h.0.fc
%5 : bf16[2,12,32] = expert_linear(%2, @w, @b, %0) {tokens=16}  # compute forward h.1.fc
%6 : bf16[2,12,32] = expert_linear(%2, @w, @b, %0) {tokens=8}  # compute forward h.1.fc
%7 : bf16[2,12,32] = expert_linear(%2, @w, @b, %0)  # compute forward h.1.fc
%8 : f32[2,32] in @b = all_reduce(@b)  # reduce sync bucket.0
)";

struct FakeCosts final : Costs {
  std::map<std::string, double, std::less<>> ops;
  std::optional<double> compute_ms(std::string_view key) const override {
    const auto it = ops.find(key);
    return it == ops.end() ? std::nullopt : std::optional(it->second);
  }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override { return 1 + bytes / 100; }
  double all_reduce_ms(double bytes, ir::Axes = {}) const override { return 2 + bytes / 100; }
  CoreCost all_to_all_core() const override { return {0, 1000}; }
  CoreCost all_reduce_core() const override { return {0, 1000}; }
  double launch_ms() const override { return 0.01; }
  Interference interference() const override { return {}; }
};

}  // namespace

TEST_CASE("the key of an op consists of its types, whole numbers and words") {
  const ir::Program program = parsed(R"(program keys
parameter @w : f32[12,8]
parameter @b : f32[12]
parameter @s : f32[8]
input @x : f32[2,4,8]
input @t : i32[2,4]
%0 : f32[2,4,8], %1 : f32[8,2] = layer_norm(@x, @s, @s) {eps=1e-05}  # compute forward a
%2 : f32[2,4,12] = linear(%0, @w, @b)  # compute forward b
%3 : f32[2,4,12] = linear(%0, @w)  # compute forward c
%4 : f32[12,8] = linear_dw(%2, %0) {bias=0}  # compute dw d
%5 : f32[2,4,4] = attention(%2) {heads=2}  # compute forward e
%6 : f32[1], %7 : f32[2,4,12] in %2 = cross_entropy_train(%2, @t) {vocabulary=11, total_tokens=16}  # compute forward f
)");
  auto key = [&](std::size_t i) { return op_key(program, program.instructions[i]); };
  CHECK(key(0) == "layer_norm(f32[2,4,8], f32[8], f32[8])");
  CHECK(key(1) == "linear(f32[2,4,8], f32[12,8], f32[12])");
  CHECK(key(2) == "linear(f32[2,4,8], f32[12,8])");
  CHECK(key(3) == "linear_dw(f32[2,4,12], f32[2,4,8]) {bias=0}");
  CHECK(key(4) == "attention(f32[2,4,12]) {heads=2}");
  CHECK(key(5) == "cross_entropy_train(f32[2,4,12], i32[2,4]) {total_tokens=16, vocabulary=11}");
}

TEST_CASE("equal layers share a key; layers with other token counts do not") {
  const ir::Program program = parsed(moe);
  auto key = [&](std::size_t i) { return op_key(program, program.instructions[i]); };
  CHECK(key(4) == key(5));
  CHECK(key(5) != key(6));
  CHECK(key(6) != key(7));
  ir::Instruction part = program.instructions[6];
  part.attributes.set("part", std::int64_t{1});
  part.attributes.set("parts", std::int64_t{2});
  CHECK(op_key(program, part) == key(6));
}

TEST_CASE("ops that differ in the seed of what they draw share a key") {
  const ir::Program program = parsed(moe);
  ir::Instruction seeded = program.instructions[6];
  seeded.attributes.set("rounding_seed", std::int64_t{7});
  seeded.attributes.set("seed", std::int64_t{8});
  CHECK(op_key(program, seeded) == op_key(program, program.instructions[6]));
  seeded.attributes.set("rows", std::int64_t{7});
  CHECK(op_key(program, seeded) != op_key(program, program.instructions[6]));
}

TEST_CASE("bytes_sent counts the bytes that leave a rank") {
  const ir::Program program = parsed(moe);
  auto bytes = [&](std::size_t i) { return bytes_sent(program, program.instructions[i]); };
  CHECK(bytes(0) == 8);    // 4 experts of 4 bytes, half of them on other ranks
  CHECK(bytes(1) == 192);  // 24 slots of 16 bytes, half
  CHECK(bytes(2) == 128);  // 16 tokens
  CHECK(bytes(3) == 32);   // 4 tokens of a part
  CHECK(bytes(4) == 0);
  CHECK(bytes(8) == 256);  // the whole vector
  CHECK(all_to_all_ranks(program, program.instructions[0]) == 2);
  CHECK(all_to_all_ranks(program, program.instructions[3]) == 2);
}

TEST_CASE("tokens beyond the capacity are dropped and not sent") {
  const ir::Program program = parsed(R"(program tight
input @filled : i32[4,2]
input @slots : f32[4,3,8]
%0 : i32[1,5] = all_to_all_counts(@filled) {ranks=4}  # expert forward counts
%1 : f32[1,12,8] = all_to_all(@slots, @filled, %0) {tokens=16}  # expert forward there
)");
  CHECK(bytes_sent(program, program.instructions[1]) == 12 * 32 * 3 / 4);
  CHECK(bytes_sent(program, program.instructions[0]) == 12);
}

TEST_CASE("op costs come from the Costs, in order on each stream") {
  const ir::Program program = parsed(moe);
  FakeCosts costs;
  for (std::size_t i = 4; i < 8; ++i) costs.ops[op_key(program, program.instructions[i])] = double(i);
  const auto found = test::good(op_costs(costs, program));
  CHECK((*found)[0].ms == Approx(1.08));
  CHECK((*found)[2].ms == Approx(2.28));
  CHECK((*found)[2].core_ms == Approx(0.128));
  CHECK((*found)[4].ms == 5);  // the same key as the next
  CHECK((*found)[6].ms == 6);
  CHECK((*found)[6].core_ms == 0);
  CHECK((*found)[8].ms == Approx(4.56));
  CHECK((*found)[8].core_ms == Approx(0.256));
}

TEST_CASE("an op without costs is named, and the other missing ones are counted") {
  const ir::Program program = parsed(moe);
  FakeCosts costs;
  costs.ops[op_key(program, program.instructions[7])] = 1;
  const Error found = test::refused(op_costs(costs, program));
  CHECK(found.code == ExitCode::config);
  CHECK(found.message.find(op_key(program, program.instructions[4]) + " and 1 more") != std::string::npos);
}

TEST_CASE("a group of ranks that costs do not know is named") {
  struct OfAllRanks final : Costs {
    std::optional<double> compute_ms(std::string_view) const override { return 1; }
    double all_to_all_ms(double, ir::Axes) const override { return 1; }
    double all_reduce_ms(double, ir::Axes) const override { return 1; }
    bool knows(ir::Axes group) const override { return group.empty(); }
    CoreCost all_to_all_core() const override { return {}; }
    CoreCost all_reduce_core() const override { return {}; }
    double launch_ms() const override { return 0; }
    Interference interference() const override { return {}; }
  };
  const auto of = [](const std::string& axes) {
    return op_costs(OfAllRanks(), parsed("program p\ninput @b : f32[2,32]\n%0 : f32[2,32] in @b = all_reduce(@b)" +
                                         axes + "  # reduce sync bucket.0\n"));
  };
  CHECK(of("").ok());
  const Error refused = test::refused(of(" {axes=\"data\"}"));
  CHECK(refused.message.find("found none of collectives over the mesh's axes data: ") != std::string::npos);
}

TEST_CASE("the all-to-all of one rank is a copy with its own time") {
  const ir::Program program = parsed(R"(program alone
input @filled : i32[4,2]
input @slots : f32[4,4,8]
%0 : i32[4,2] = all_to_all_counts(@filled) {ranks=1}  # expert forward counts
%1 : f32[4,4,8] = all_to_all(@slots, @filled, %0) {tokens=16}  # expert forward there
)");
  CHECK(is_local(program, program.instructions[1]));
  CHECK(bytes_sent(program, program.instructions[1]) == 0);
  FakeCosts costs;
  costs.ops["all_to_all(f32[4,4,8], i32[4,2], i32[4,2]) {tokens=16}"] = 7;
  const auto found = test::good(op_costs(costs, program));
  CHECK((*found)[0].ms == 1);  // all_to_all_ms(0)
  CHECK((*found)[1].ms == 7);
  CHECK((*found)[1].core_ms == 7);
}

TEST_CASE("the build id of the kernels is a hash") {
  CHECK(kernel_build().size() == 16);
  CHECK(kernel_build().find_first_not_of("0123456789abcdef") == std::string_view::npos);
}

TEST_CASE("a collective is priced by the bytes that a rank sends to the others of its group") {
  const auto program = ir::parse(R"(input @x : bf16[6,4]
%0 : bf16[18,4] = all_gather(@x) {axes=data, shards=3, axis=0}  # expert forward a
%1 : bf16[18,4] = sum_shards(%0) {axes=data, shards=3}  # expert forward b
%2 : bf16[2,4] = take_shard(@x) {axes=data, shards=3, axis=0}  # compute forward c
)");
  REQUIRE(program.ok());
  REQUIRE(ops::verify(*program).ok());
  const auto& at = program->instructions;
  CHECK(bytes_sent(*program, at[0]) == 96);
  CHECK(bytes_sent(*program, at[1]) == 192);
  CHECK(bytes_sent(*program, at[2]) == 0);
  CHECK(all_to_all_ranks(*program, at[1]) == 3);
  CHECK_FALSE(is_local(*program, at[0]));
  CHECK(is_local(*program, at[2]));
}

}  // namespace lancet

namespace lancet::cost {

// How many ranks of a group share a host.

TEST_CASE("hosts are told apart where each has as many ranks, and more than one") {
  CHECK(Layout{8, 2}.ranks_sharing_host() == 4);
  CHECK(Layout{6, 2}.ranks_sharing_host() == 3);
  CHECK(Layout{.ranks = 6, .hosts = 2, .even = false}.ranks_sharing_host() == 1);  // four and two
  CHECK(Layout{7, 2}.ranks_sharing_host() == 1);
  CHECK(Layout{8, 8}.ranks_sharing_host() == 1);
  CHECK(Layout{8, 1}.ranks_sharing_host() == 1);
}

TEST_CASE("hosts are told apart in groups of which each host has as many ranks") {
  const ir::Axes data{ir::Axis::data}, expert{ir::Axis::expert};
  // Twelve ranks, four on each of three hosts: a group of six has four ranks on one host and two on another.
  CHECK(Layout{12, 3, ir::Mesh{{1, 2, 6, 1}}}.ranks_sharing_host(expert) == 1);
  CHECK(Layout{12, 3, ir::Mesh{{1, 2, 6, 1}}}.ranks_sharing_host(data) == 1);
  CHECK(Layout{12, 4, ir::Mesh{{1, 2, 6, 1}}}.ranks_sharing_host(expert) == 3);
  // Six ranks on each of two hosts: the first group of four is on one host, the second on both.
  CHECK(Layout{12, 2, ir::Mesh{{1, 3, 4, 1}}}.ranks_sharing_host(expert) == 1);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}}.ranks_sharing_host(data) == 2);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}}.ranks_sharing_host(expert) == 1);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}}.ranks_sharing_host(data | expert) == 6);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}, 1, false}.ranks_sharing_host(data) == 1);
  CHECK_FALSE(Layout{12, 3, ir::Mesh{{1, 2, 6, 1}}}.group(expert).even);
  CHECK(Layout{12, 4, ir::Mesh{{1, 2, 6, 1}}}.group(expert).even);
}

TEST_CASE("ranks fill one host after the other") {
  CHECK(hosts_of(6, 4) == 2);
  CHECK(hosts_of(8, 4) == 2);
  CHECK(hosts_of(1, 1) == 1);
}

}  // namespace lancet::cost
