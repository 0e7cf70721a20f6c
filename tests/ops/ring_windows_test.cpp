// Permutes over ranks that are threads, windows of tensors, and what they refuse and send.
#include "doubles/inproc.h"
#include "ops/references/harness.h"

#include <catch2/catch.hpp>

using namespace lancet;
using namespace lancet::test;

namespace {

GuardedTensor numbered_rows(const Shape& shape, float first) {
  GuardedTensor tensor({DType::f32, shape});
  for (std::int64_t i = 0; i < shape.elements(); ++i) tensor.as<float>()[i] = first + float(i);
  return tensor;
}

ir::Attributes ring_of(int ranks, std::int64_t shift) {
  return {{"axes", "tensor"}, {"shards", std::int64_t{ranks}}, {"of", "all_gather"}, {"shift", shift}};
}

ir::Attributes windows_of(int ranks, std::int64_t axis, std::int64_t blocks) {
  return {{"axes", "tensor"}, {"shards", std::int64_t{ranks}}, {"axis", axis}, {"blocks", blocks}};
}

}  // namespace

TEST_CASE("permute_shards brings the tensor of the rank that many places on, and a second one from before") {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (std::int64_t shift = 1; shift < std::max(ranks, 2); ++shift)
      for (const std::size_t operands : {1u, 2u}) {
        const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
          const int rank = world.rank(), on = int(rank + shift) % ranks, before = int(rank - shift + ranks) % ranks;
          std::vector<GuardedTensor> sent{numbered_rows({3, 5}, float(100 * rank)),
                                          numbered_rows({7}, float(-1000 - 100 * rank))};
          sent.resize(operands, sent[0]);
          const Outcome outcome = run(ops::op("permute_shards"), sent, ring_of(ranks, shift), 1, &world);
          if (!outcome.faults.empty()) return internal_error(outcome.faults[0]);
          if (!outcome.results[0].same_bytes(numbered_rows({3, 5}, float(100 * on))))
            return internal_error("of the next");
          if (operands > 1 && !outcome.results[1].same_bytes(numbered_rows({7}, float(-1000 - 100 * before))))
            return internal_error("of the one before");
          return {};
        });
        INFO(ranks << " ranks, shift " << shift << ", " << operands
                   << " operands: " << (status.ok() ? "" : status.error().message));
        CHECK(status.ok());
      }
}

TEST_CASE("windows are shards that each rank numbers from its own, and joined they are the whole") {
  for (const int ranks : {1, 2, 3, 4})
    for (const int axis : {0, 1, 2})
      for (const std::int64_t blocks : {1, 2}) {
        Shape shape{2, 3, 5};
        shape.set(axis, blocks * ranks * 3);
        const GuardedTensor whole = numbered_rows(shape, 0);
        const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
          const ir::Attributes attributes = windows_of(ranks, axis, blocks);
          std::vector<GuardedTensor> windows;
          for (int w = 0; w < ranks; ++w) {
            ir::Attributes of_window = attributes;
            of_window.set("part", std::int64_t{w});
            windows.push_back(run(ops::op("take_window"), {whole}, of_window, 1, &world).results[0]);
            std::vector<GuardedTensor> expected;  // of each block
            const int shard = (world.rank() + w) % ranks;
            for (std::int64_t b = 0; b < blocks; ++b)
              expected.push_back(slice(whole, axis, (b * ranks + shard) * 3, (b * ranks + shard + 1) * 3));
            if (!windows.back().same_bytes(join(expected, axis))) return internal_error("another window");
          }
          const Outcome joined = run(ops::op("join_windows"), windows, attributes, 1, &world);
          if (!joined.faults.empty()) return internal_error(joined.faults[0]);
          return joined.results[0].same_bytes(whole) ? Status() : Status(internal_error("another whole"));
        });
        INFO(ranks << " ranks, axis " << axis << ", " << blocks
                   << " blocks: " << (status.ok() ? "" : status.error().message));
        CHECK(status.ok());
      }
}

TEST_CASE("permutes and windows refuse what does not fit") {
  const auto refused = [](std::string_view op, std::vector<ir::TensorType> operands, ir::Attributes attributes) {
    const auto inferred = ops::op(op).infer({operands, attributes});
    return inferred.ok() ? "accepted " + ir::to_string((*inferred)[0]) : inferred.error().message;
  };
  const ir::TensorType x{DType::f32, {6, 4}};
  const std::string shift =
      "expected the attributes shards, the ranks of a group, and shift, from 1 on and less than that";
  CHECK(refused("permute_shards", {x}, ring_of(4, 3)) == "accepted f32[6,4]");
  CHECK(refused("permute_shards", {x}, ring_of(4, 4)) == shift);
  CHECK(refused("permute_shards", {x}, ring_of(4, 0)) == shift);
  CHECK(refused("permute_shards", {x}, ring_of(0, 1)) == shift);
  CHECK(refused("permute_shards", {x}, {{"shards", std::int64_t{2}}, {"of", ""}, {"shift", std::int64_t{1}}}) ==
        "expected the attribute of, a collective");
  CHECK(refused("permute_shards", {{DType::i64, {4}}}, ring_of(4, 1)) == "expected tensors of f32, bf16 or i32");
  ir::Attributes window = windows_of(3, 0, 1);
  const std::string divides = "expected a dimension whose blocks the shards divide, and one of the windows";
  window.set("part", std::int64_t{2});
  CHECK(refused("take_window", {x}, window) == "accepted f32[2,4]");
  window.set("part", std::int64_t{3});
  CHECK(refused("take_window", {x}, window) == divides);
  window.set("part", std::int64_t{-1});
  CHECK(refused("take_window", {x}, window) == divides);
  ir::Attributes uneven = windows_of(3, 1, 1);
  uneven.set("part", std::int64_t{0});
  CHECK(refused("take_window", {x}, uneven) == divides);  // 4 columns
  CHECK(refused("join_windows", {x, x, x}, windows_of(3, 0, 2)) == "accepted f32[18,4]");
  CHECK(refused("join_windows", {x, x}, windows_of(3, 0, 1)) ==
        "expected as many windows as shards, of a dimension that the blocks divide");
  CHECK(refused("join_windows", {x, {DType::f32, {5, 4}}}, windows_of(2, 0, 1)) == "expected windows of one type");
}

TEST_CASE("a permute sends its operands, all of them") {
  const std::vector<ir::TensorType> x{{DType::bf16, {6, 4}}, {DType::bf16, {6, 4}}};
  CHECK(ops::op("permute_shards").work({x, ring_of(4, 1)}).sent == 96);
  CHECK(ops::op("permute_shards").work({x, ring_of(1, 1)}).sent == 0);
}
