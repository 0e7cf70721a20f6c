// Collectives and local shards over ranks that are threads, the types that they refuse, and what they send.
#include "ops/references/collective_cases.h"

#include <catch2/catch.hpp>

using namespace lancet;
using namespace lancet::test;

TEST_CASE("collectives give every rank its shards and sums, in the order of the ranks") {
  for (const int ranks : {1, 2, 3, 4})
    for (const CollectiveCase& test : collective_cases(ranks)) {
      const Status status =
          run_collective(test, [](const ops::OpDef& op, const GuardedTensor& operand, const ir::Attributes& attributes,
                                  comm::Communicator& world) { return run(op, {operand}, attributes, 1, &world); });
      INFO((status.ok() ? "" : status.error().message));
      CHECK(status.ok());
    }
}

TEST_CASE("collectives refuse types and attributes that do not fit") {
  const auto refused = [](std::string_view op, ir::TensorType type, ir::Attributes attributes) {
    const std::vector<ir::TensorType> operands{type};
    const auto inferred = ops::op(op).infer({operands, attributes});
    return inferred.ok() ? "accepted " + ir::to_string((*inferred)[0]) : inferred.error().message;
  };
  const std::string divides = "expected a dimension whose blocks the shards divide";
  const ir::TensorType x{DType::f32, {6, 4}};
  CHECK(refused("all_gather", x, {{"axes", "data"}, {"shards", 4}, {"axis", 0}}) == "accepted f32[24,4]");
  CHECK(refused("reduce_scatter", x, {{"axes", "data"}, {"shards", 3}, {"axis", 0}, {"blocks", 2}}) ==
        "accepted f32[2,4]");
  CHECK(refused("swap_shards", x, {{"axes", "data"}, {"shards", 2}, {"from", 0}, {"to", 1}}) == "accepted f32[12,2]");
  CHECK(refused("reduce_scatter", x, {{"axes", "data"}, {"shards", 4}, {"axis", 0}}) == divides);
  CHECK(refused("all_gather", x, {{"axes", "data"}, {"shards", 2}, {"axis", 0}, {"blocks", 4}}) == divides);
  CHECK(refused("all_gather", x, {{"axes", "data"}, {"shards", 2}, {"axis", 2}}) == divides);
  CHECK(refused("swap_shards", x, {{"axes", "data"}, {"shards", 2}, {"from", 1}, {"to", 1}}) ==
        "expected two dimensions, from and to");
  CHECK(refused("sum_shards", x, {{"axes", "data"}, {"shards", 0}}) ==
        "expected the attribute shards, the ranks of a group");
  const ir::TensorType tokens{DType::i32, {6, 4}};
  CHECK(refused("all_gather", tokens, {{"axes", "data"}, {"shards", 4}, {"axis", 0}}) == "accepted i32[24,4]");
  CHECK(refused("swap_shards", tokens, {{"axes", "data"}, {"shards", 2}, {"from", 0}, {"to", 1}}) ==
        "accepted i32[12,2]");
  CHECK(refused("take_shard", tokens, {{"axes", "data"}, {"shards", 3}, {"axis", 0}}) == "accepted i32[2,4]");
  CHECK(refused("all_gather", {DType::i64, {4}}, {{"axes", "data"}, {"shards", 2}, {"axis", 0}}) ==
        "expected a tensor of f32, bf16 or i32");
  CHECK(refused("sum_shards", {DType::i32, {4}}, {{"axes", "data"}, {"shards", 2}}) ==
        "expected a tensor of f32 or bf16");
  CHECK(refused("take_shard", x, {{"axes", "data"}, {"shards", 5}, {"axis", 0}}) ==
        "expected the attribute axes and a dimension whose blocks the shards divide");
  const std::int64_t huge = std::int64_t{1} << 32;  // its square is 0 in 64 bits
  for (const std::int64_t blocks : {huge, huge << 30})
    for (const ir::TensorType& type : {x, ir::TensorType{DType::f32, {0, 4}}}) {
      const ir::Attributes attributes{{"axes", "data"}, {"shards", huge}, {"axis", 0}, {"blocks", blocks}};
      CHECK(refused("reduce_scatter", type, attributes) == divides);
      CHECK(refused("all_gather", type, attributes) == divides);
    }
  CHECK(refused("all_gather", x, {{"axes", "data"}, {"shards", huge << 30}, {"axis", 0}}) == divides);
  CHECK(refused("one_summand", x, {}) == "expected the attribute axes, a group of ranks");
}

TEST_CASE("the work of a collective says what a rank sends to the others") {
  const std::vector<ir::TensorType> x{{DType::bf16, {6, 4}}};  // 48 bytes
  const auto sent = [&](std::string_view op, ir::Attributes attributes) {
    return ops::op(op).work({x, attributes}).sent;
  };
  CHECK(sent("all_gather", {{"axes", "data"}, {"shards", 3}, {"axis", 0}}) == 96);
  CHECK(sent("reduce_scatter", {{"axes", "data"}, {"shards", 3}, {"axis", 0}}) == 32);
  CHECK(sent("sum_shards", {{"axes", "data"}, {"shards", 3}}) == 64);
  CHECK(sent("swap_shards", {{"axes", "data"}, {"shards", 2}, {"from", 0}, {"to", 1}}) == 24);
}

// Tokens go to the experts of one group of ranks, while the other group does the same.
TEST_CASE("an all-to-all goes over the ranks of its group") {
  const Status status = comm::run_inproc(4, [](comm::Communicator& world) -> Status {
    const int rank = world.rank();
    const std::vector<int> members{rank % 2, rank % 2 + 2};
    LANCET_ASSIGN(const auto group, world.split(members));
    constexpr std::int64_t experts = 4, capacity = 2, width = 3;  // of the group
    GuardedTensor filled({DType::i32, {experts, 2}}), slots({DType::f32, {experts, capacity, width}});
    for (std::int64_t e = 0; e < experts; ++e) {
      filled.as<std::int32_t>()[2 * e] = 0;
      filled.as<std::int32_t>()[2 * e + 1] = 1 + std::int32_t(e % 2);
      for (std::int64_t i = 0; i < capacity * width; ++i)
        slots.as<float>()[e * capacity * width + i] = float(100 * rank + 10 * e + i);
    }
    const auto called = [&](std::string_view op, std::vector<GuardedTensor> operands, ir::Attributes attributes) {
      return run(ops::op(op), std::move(operands), attributes, 1, group.get()).results[0];
    };
    const GuardedTensor rows = called("all_to_all_counts", {filled}, {{"ranks", std::int64_t{2}}, {"axes", "data"}});
    const GuardedTensor buffer = called("all_to_all", {slots, filled, rows}, {{"axes", "data"}});
    for (std::int64_t local = 0; local < 2; ++local) {
      const std::int64_t e = 2 * group->rank() + local;
      for (int source = 0; source < 2; ++source)
        for (std::int64_t i = 0; i < (1 + e % 2) * width; ++i) {
          const std::int64_t at = (local * 2 * capacity + source * (1 + e % 2)) * width + i;
          const float expected = float(100 * members[std::size_t(source)] + 10 * e + i);
          if (buffer.as<float>()[at] != expected)
            return internal_error(fmt::format("rank {}: {} != {}", rank, buffer.as<float>()[at], expected));
        }
    }
    const GuardedTensor back = called("all_to_all_back", {buffer, filled, rows}, {{"axes", "data"}});
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t i = 0; i < (1 + e % 2) * width; ++i)
        if (back.as<float>()[e * capacity * width + i] != slots.as<float>()[e * capacity * width + i])
          return internal_error("the rows that came back");
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
}
