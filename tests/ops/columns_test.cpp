// Tiles of columns (OpDef::column_tiles): split, run, join. Products sum in the same order whatever the tile, so the
// joined tiles have the bits of the whole. So do sums over tiles of the columns that a product sums over (OpDef::sums),
// if tiles have even numbers of columns.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <optional>

#include "lancet/ops/catalogue.h"
#include "lancet/ops/column_tiles.h"
#include "lancet/ops/contraction.h"
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

// The product by tiles of the columns that it sums over, taken out of operand 0 by take_columns, rounded at the end.
GuardedTensor product_of_tiles(const ops::OpDef& op, const std::vector<GuardedTensor>& operands,
                               const ops::Sample& sample, std::int64_t tiles) {
  std::optional<GuardedTensor> sums;
  for (std::int64_t part = 0; part < tiles; ++part) {
    ir::Attributes attributes = sample.attributes;
    attributes.set("part", part);
    attributes.set("parts", tiles);
    ir::Attributes take = attributes;
    take.set("columns", ops::column_tile(operands[0].shape().back(), part, tiles).columns);
    Outcome taken = run(ops::op("take_columns"), {operands[0], operands.back()}, take);
    std::vector<GuardedTensor> of_tile = operands;
    of_tile[0] = std::move(taken.results[0]);
    if (sums) of_tile.push_back(*sums);
    Outcome tile = run(ops::op(op.sums), of_tile, attributes);
    CHECK(taken.faults.empty());
    CHECK(tile.faults.empty());
    sums = std::move(tile.results[0]);
  }
  if (operands[0].type().dtype == DType::f32) return *sums;
  return run(ops::op("round_rows"), {*sums, operands.back()}, sample.attributes).results[0];
}

void check_sums(const ops::OpDef& op, const ops::Sample& sample, std::int64_t tiles, bool same_bits) {
  const SampleRoute route(sample, column_seed);
  const std::vector<GuardedTensor> operands = make_operands(sample, route, column_seed);
  const Outcome whole = run(op, operands, sample.attributes);
  const GuardedTensor found = product_of_tiles(op, operands, sample, tiles);
  INFO(op.name << ", " << tiles << " tiles of " << operands[0].shape().back() << " columns");
  if (same_bits) CHECK(found.same_bytes(whole.results[0]));
  const DoubleTensor x = to_double(found), y = to_double(whole.results[0]);
  const double unit = found.type().dtype == DType::bf16 ? 0x1p-7 : 1e-5;
  for (std::int64_t i = 0; i < y.shape().elements(); ++i)
    if (!std::isnan(y[i])) CHECK(std::abs(x[i] - y[i]) <= unit * (1 + std::abs(y[i])));
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

TEST_CASE("tiles of columns cover each column once, and begin at multiples of 8 if there are enough columns") {
  for (std::int64_t width : {1, 3, 7, 8, 24, 30, 64, 100, 768, 1001})
    for (std::int64_t tiles = 1; tiles <= std::min<std::int64_t>(width, 9); ++tiles) {
      std::int64_t next = 0;
      for (std::int64_t part = 0; part < tiles; ++part) {
        INFO(width << " columns, tile " << part << " of " << tiles);
        const ops::ColumnTile tile = ops::column_tile(width, part, tiles);
        CHECK(tile.first == next);
        CHECK(tile.columns > 0);
        if (width % tiles == 0) CHECK(tile.columns == width / tiles);
        if (width % tiles != 0 && width >= 8 * tiles) CHECK(tile.first % 8 == 0);
        next += tile.columns;
      }
      CHECK(next == width);
    }
}

TEST_CASE("sums over tiles of columns are the whole product, equal tiles or not") {
  const auto of = [](DType type, Shape shape) { return ops::SampleOperand{{type, shape}}; };
  const ops::SampleOperand rows{{DType::i32, {4, 2}}, ops::Fill::rows};
  const ir::Attributes route{{"capacity", 8}, {"tokens", 16}};
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t width : {24, 50}) {
      const ops::Sample forward{{of(type, {4, 8, width}), of(type, {4, 18, width}), of(DType::f32, {4, 18}), rows},
                                route};
      const ops::Sample backward{{of(type, {4, 8, width}), of(type, {4, width, 18}), rows}, route};
      for (const std::int64_t tiles : {1, 2, 3, 4}) {
        const bool even = width == 24 || tiles == 4;  // of 50: 8, 16, 8 and 18 columns
        check_sums(ops::op("expert_linear"), forward, tiles, even);
        check_sums(ops::op("expert_linear_dx"), backward, tiles, even);
      }
    }
}

TEST_CASE("how fused ops are made of tiles of sums") {
  const ops::Contraction forward = ops::contraction_of("expert_linear_gelu");
  CHECK(forward.sums == "expert_linear_sums");
  CHECK(forward.operands == std::vector<int>{0, 1, 2, 3});
  CHECK(forward.reader == "gelu");
  CHECK_FALSE(forward.backward);
  const ops::Contraction backward = ops::contraction_of("expert_linear_dx_gelu");
  CHECK(backward.sums == "expert_linear_dx_sums");
  CHECK(backward.operands == std::vector<int>{0, 1, 3});
  CHECK(backward.reader == "gelu_dx");
  CHECK(backward.backward);
  CHECK(ops::contraction_of("expert_linear_dx").reader.empty());
  CHECK(ops::contraction_of("linear").sums.empty());
}

TEST_CASE("tiles of sums and copies of columns refuse what is no tile") {
  const auto refused = [](std::string_view op, const std::vector<ir::TensorType>& types, const ir::Attributes& with) {
    return !ops::op(op).infer({types, with}).ok();
  };
  const ir::TensorType x{DType::f32, {4, 8, 6}}, w{DType::f32, {4, 16, 24}}, b{DType::f32, {4, 16}},
      rows{DType::i32, {4, 2}}, sums{DType::f32, {4, 8, 16}};
  const ir::Attributes tile{{"part", 1}, {"parts", 4}}, past{{"part", 4}, {"parts", 4}},
      half{{"part", 1}, {"parts", 2}};
  CHECK_FALSE(refused("expert_linear_sums", {x, w, b, rows}, tile));
  CHECK_FALSE(refused("expert_linear_sums", {x, w, b, rows, sums}, tile));
  CHECK(refused("expert_linear_sums", {x, w, b, rows, {DType::bf16, {4, 8, 16}}}, tile));
  CHECK(refused("expert_linear_sums", {x, w, b, rows}, past));
  CHECK(refused("expert_linear_sums", {x, w, b, rows}, half));
  CHECK(refused("expert_linear_dx_sums", {x, w, rows}, tile));  // 16 rows of weights make tiles of 4
  CHECK_FALSE(refused("expert_linear_dx_sums", {{DType::f32, {4, 8, 4}}, w, rows}, tile));
  const auto copied = [](std::int64_t columns) {
    return ir::Attributes{{"part", 1}, {"parts", 4}, {"columns", columns}};
  };
  CHECK_FALSE(refused("take_columns", {sums, rows}, copied(4)));
  CHECK(refused("take_columns", {sums, rows}, copied(5)));
  CHECK_FALSE(refused("place_columns", {x, rows}, tile));
  CHECK(refused("place_columns", {x, rows}, {{"part", 1}, {"parts", 4}, {"width", 20}}));
}

TEST_CASE("tiles of sums read and write no more than their share") {
  const ops::OpDef& op = ops::op("expert_linear_sums");
  const auto work = [&](std::int64_t parts, bool adds) {
    std::vector<ir::TensorType> types{
        {DType::f32, {4, 8, 24 / parts}}, {DType::f32, {4, 16, 24}}, {DType::f32, {4, 16}}, {DType::i32, {4, 2}}};
    if (adds) types.push_back({DType::f32, {4, 8, 16}});
    const ir::Attributes attributes{{"tokens", 16}, {"part", 0}, {"parts", parts}};
    return op.work({types, attributes});
  };
  CHECK(work(1, false).flops == 2.0 * 16 * 24 * 16);
  CHECK(work(4, false).flops == 2.0 * 16 * 6 * 16);
  CHECK(work(4, false).bytes == 4.0 * (16 * 6 + 16 * 16 + 4 * 16 * 6));
  CHECK(work(4, true).bytes == work(4, false).bytes + 4.0 * 16 * 16);  // it reads the sums, too
}
