// Tiles of columns (OpDef::column_tiles): split, run, join. Products sum in the same order whatever the tile, so the
// joined tiles have the bits of the whole.
#include <catch2/catch.hpp>
#include <cstring>

#include "lancet/ops/catalogue.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr std::uint64_t column_seed = 17;

std::int64_t columns_of_result(const ops::OpDef& op, const ops::Sample& sample) {
  std::vector<ir::TensorType> types;
  for (const ops::SampleOperand& operand : sample.operands) types.push_back(operand.type);
  return (*op.infer({types, sample.attributes}))[0].shape.back();
}

ir::Attributes attributes_of_tile(const ops::Sample& sample, std::int64_t columns, std::int64_t part) {
  ir::Attributes attributes = sample.attributes;
  attributes.set("columns", columns);
  attributes.set("part", part);
  return attributes;
}

// Makes all tiles, puts them in their place by place_columns, and compares the whole with one that was made at once.
void check_tiles(const ops::OpDef& op, const ops::Sample& sample, std::int64_t tiles) {
  const SampleRoute route(sample, column_seed);
  const std::vector<GuardedTensor> operands = make_operands(sample, route, column_seed);
  const Outcome whole = run(op, operands, sample.attributes);
  const std::int64_t columns = whole.results[0].shape().back() / tiles;
  GuardedTensor joined(whole.results[0].type());
  const auto rows = std::size_t(joined.shape().rows()), wide = joined.size() / rows, narrow = wide / std::size_t(tiles);
  for (std::int64_t part = 0; part < tiles; ++part) {
    const Outcome tile = run(op, operands, attributes_of_tile(sample, columns, part));
    CHECK(tile.faults.empty());
    ir::Attributes place = sample.attributes;
    place.set("part", part);
    place.set("parts", tiles);
    const Outcome placed = run(ops::op("place_columns"), {tile.results[0], operands.back()}, place);
    CHECK(placed.faults.empty());
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t at = r * wide + std::size_t(part) * narrow;
      std::memcpy(joined.data() + at, placed.results[0].data() + at, narrow);
    }
  }
  CHECK(joined.same_bytes(whole.results[0]));
}

}  // namespace

TEST_CASE("tiles of columns: split, run, join, compare bit for bit") {
  int checked = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!op->column_tiles) continue;
    for (const ops::Sample& sample : samples_of(*op)) {
      if (sample.attributes.has("streamed")) continue;
      const std::int64_t all = columns_of_result(*op, sample);
      for (std::int64_t tiles : {1, 2, 3, 4, 8}) {
        if (all % tiles != 0) continue;
        INFO(op->name << ", " << tiles << " tiles of " << all << " columns");
        check_tiles(*op, sample, tiles);
        ++checked;
      }
    }
  }
  CHECK(checked > 20);
}

// Sums of that length are oneDNN's where the CPU has a matrix unit.
TEST_CASE("tiles of columns: long sums in bf16") {
  const auto bf16_of = [](Shape shape) { return ops::SampleOperand{{DType::bf16, shape}}; };
  const ops::SampleOperand rows{{DType::i32, {4, 2}}, ops::Fill::rows};
  const ir::Attributes route{{"capacity", 64}, {"tokens", 128}};
  const ops::SampleOperand bias{{DType::f32, {4, 192}}};
  for (const std::int64_t tiles : {2, 4}) {
    check_tiles(ops::op("expert_linear"), {{bf16_of({4, 64, 512}), bf16_of({4, 192, 512}), bias, rows}, route}, tiles);
    check_tiles(ops::op("expert_linear_dx"), {{bf16_of({4, 64, 512}), bf16_of({4, 512, 192}), rows}, route}, tiles);
  }
}

TEST_CASE("tiles of columns read and write no more than their share") {
  const ops::OpDef& op = ops::op("expert_linear");
  const std::vector<ir::TensorType> types{
      {DType::f32, {4, 8, 24}}, {DType::f32, {4, 16, 24}}, {DType::f32, {4, 16}}, {DType::i32, {4, 2}}};
  const auto columns = [&](std::int64_t columns, std::int64_t part) {
    return ir::Attributes{{"tokens", 16}, {"columns", columns}, {"part", part}};
  };
  CHECK((*op.infer({types, columns(4, 3)}))[0].shape == Shape{4, 8, 4});
  CHECK_FALSE(op.infer({types, columns(4, 4)}).ok());
  CHECK_FALSE(op.infer({types, columns(0, 0)}).ok());
  const ir::Attributes whole{{"tokens", 16}};
  const ops::Work all = op.work({types, whole}), one = op.work({types, columns(4, 1)});
  CHECK(one.flops == all.flops / 4);
  CHECK(one.bytes < all.bytes);
}

TEST_CASE("copies of columns refuse what is no tile") {
  const auto refused = [](const std::vector<ir::TensorType>& types, const ir::Attributes& with) {
    return !ops::op("place_columns").infer({types, with}).ok();
  };
  const ir::TensorType x{DType::f32, {4, 8, 6}}, rows{DType::i32, {4, 2}};
  CHECK_FALSE(refused({x, rows}, {{"part", 3}, {"parts", 4}}));
  CHECK(refused({x, rows}, {{"part", 4}, {"parts", 4}}));
  CHECK(refused({x, {DType::i32, {3, 2}}}, {{"part", 1}, {"parts", 4}}));
}
