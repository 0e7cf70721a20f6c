// The products over filled rows, emulated, compared with the CPU's kernels: ranges that are uneven, empty, full, or
// begin within the buffer; tensor cores (extents of several tiles and of partial tiles) and ordinary arithmetic; copies
// that arrive at once and as late as their waits allow.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "emulated_kernels.h"
#include "lancet/ops/catalogue.h"
#include "ops/moe/expert_linear/grouped_product.h"

using namespace lancet;
using namespace lancet::test;

namespace {

struct Tensor {
  explicit Tensor(ir::TensorType type) : type(type), units(std::size_t(ir::bytes(type)) / 16 + 2) {
    std::memset(static_cast<void*>(units.data()), 0xff, units.size() * 16);  // NaN in both types
  }
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  ir::TensorType type;
  std::vector<Unit> units;
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(units.data());
  }
  ops::TensorView view() { return {units.data(), type}; }
  bool operator==(const Tensor& other) const {
    return std::memcmp(units.data(), other.units.data(), units.size() * 16) == 0;
  }
};

float at(Tensor& tensor, std::int64_t i) {
  return tensor.type.dtype == DType::bf16 ? to_f32(tensor.as<bf16>()[i]) : tensor.as<float>()[i];
}

void fill(Tensor& tensor, std::int64_t begin, std::int64_t end, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (std::int64_t i = begin; i < end; ++i) {
    if (tensor.type.dtype == DType::bf16)
      tensor.as<bf16>()[i] = from_f32<bf16>(normal(random));
    else
      tensor.as<float>()[i] = normal(random);
  }
}
void fill(Tensor& tensor, std::mt19937& random) { fill(tensor, 0, tensor.type.shape.elements(), random); }

struct Ranges {
  std::int64_t buffer;
  int sources;
  std::vector<std::int32_t> bounds;  // [experts, sources + 1]
  std::int64_t experts() const { return std::int64_t(bounds.size()) / (sources + 1); }
};

// Rows outside the ranges stay NaN: nothing may read them.
Tensor rows_tensor(DType dtype, const Ranges& ranges, std::int64_t columns, std::mt19937& random) {
  Tensor tensor({dtype, {ranges.experts(), ranges.buffer, columns}});
  for (std::int64_t e = 0; e < ranges.experts(); ++e) {
    const std::int32_t* range = ranges.bounds.data() + e * (ranges.sources + 1);
    fill(tensor, (e * ranges.buffer + range[0]) * columns, (e * ranges.buffer + range[ranges.sources]) * columns,
         random);
  }
  return tensor;
}

struct Case {
  std::string op;
  std::vector<Tensor> operands, results;
  std::int64_t length;  // terms of a sum, at most
  ir::Attributes attributes = {};
  int multiprocessors = hopper_traits.multiprocessors;
};

// A host's device with as many multiprocessors.
class DeviceOf : public HostDevice {
 public:
  explicit DeviceOf(int multiprocessors) { traits_.multiprocessors = multiprocessors; }
  const backend::DeviceTraits& traits() const override { return traits_; }

 private:
  backend::DeviceTraits traits_ = hopper_traits;
};

ops::KernelArgs arguments(Case& c) {
  ops::KernelArgs args{c.op, {}, {}, c.attributes};
  for (Tensor& tensor : c.operands) args.operands.push_back(tensor.view());
  for (Tensor& tensor : c.results) args.results.push_back(tensor.view());
  return args;
}

Case run_emulated(Case c, bool late, std::uint64_t order) {
  DeviceOf device(c.multiprocessors);
  HostStream stream;
  ops::KernelArgs args = arguments(c);
  args.device = &device, args.stream = &stream;
  ops::device::emulated::late_copies = late;
  ops::device::emulated::order_seed = order;
  CHECK(find_emulated_kernel(c.op)->bind(args)().ok());
  ops::device::emulated::late_copies = true;
  return c;
}

// Every element is within the rounding of its type, or untouched if the CPU wrote nothing.
void check_against_cpu(const Case& c) {
  Case cpu = c, late = run_emulated(c, true, 3), early = run_emulated(c, false, 5);
  REQUIRE(ops::find_cpu_kernel(c.op)->bind(arguments(cpu))().ok());
  for (std::size_t r = 0; r < c.results.size(); ++r) {
    CHECK(late.results[r] == early.results[r]);
    const DType dtype = c.results[r].type.dtype;
    const double roundings = c.op.ends_with("_gelu") ? 2 : 1;  // the CPU rounds the product, too
    const double unit = (dtype == DType::bf16 ? roundings * 0x1p-8 : 0) + 0x1p-22 * std::sqrt(double(c.length));
    int wrong = 0;
    for (std::int64_t i = 0; i < c.results[r].type.shape.elements() && wrong < 4; ++i) {
      const float expected = at(cpu.results[r], i), found = at(late.results[r], i);
      if (std::isnan(expected) && std::isnan(found)) continue;
      if (std::abs(found - expected) <= unit * (std::abs(expected) + std::sqrt(double(c.length)))) continue;
      ++wrong;
      FAIL_CHECK(c.op << " " << ir::to_string(c.results[r].type) << " element " << i << ": expected " << expected
                      << ", found " << found);
    }
  }
  for (std::size_t i = 0; i < c.operands.size(); ++i) CHECK(late.operands[i] == c.operands[i]);
}

// The second of several tiles of columns, of half the width and of 8 columns.
void check_tiles(const Case& whole) {
  const ir::TensorType& type = whole.results[0].type;
  for (const std::int64_t columns : {type.shape.back() / 2, std::int64_t(8)}) {
    if (columns < 1 || 2 * columns > type.shape.back()) continue;
    Shape shape = type.shape;
    shape.set(-1, columns);
    check_against_cpu({whole.op,
                       whole.operands,
                       {Tensor({type.dtype, shape})},
                       whole.length,
                       {{"columns", columns}, {"part", std::int64_t(1)}}});
  }
}

void check_products(DType dtype, const Ranges& ranges, std::int64_t n, std::int64_t k) {
  std::mt19937 random(7);
  const std::int64_t e = ranges.experts();
  Tensor rows({DType::i32, {e, ranges.sources + 1}});
  std::memcpy(rows.as<std::int32_t>(), ranges.bounds.data(), ranges.bounds.size() * 4);
  Tensor x = rows_tensor(dtype, ranges, k, random), dy = rows_tensor(dtype, ranges, n, random);
  Tensor w({dtype, {e, n, k}}), b({DType::f32, {e, n}}), dw({DType::f32, {e, n, k}}), db({DType::f32, {e, n}});
  for (Tensor* tensor : {&w, &b}) fill(*tensor, random);
  for (const Case& product : {Case{"expert_linear", {x, w, b, rows}, {Tensor({dtype, {e, ranges.buffer, n}})}, k},
                              Case{"expert_linear_dx", {dy, w, rows}, {Tensor({dtype, {e, ranges.buffer, k}})}, n}}) {
    check_against_cpu(product);
    check_tiles(product);
  }
  const Tensor y({dtype, {e, ranges.buffer, n}});
  check_against_cpu({"expert_linear_gelu", {x, w, b, rows}, {y, y}, k});
  check_against_cpu({"expert_linear_dx_gelu", {dy, w, x, rows}, {Tensor({dtype, {e, ranges.buffer, k}})}, n});
  check_against_cpu({"expert_linear_dw", {dy, x, rows}, {dw, db}, ranges.buffer});
  for (Tensor* tensor : {&dw, &db}) fill(*tensor, random);
  // In place: the results are written over the accumulators.
  check_against_cpu({"expert_linear_dw", {dy, x, rows, dw, db}, {dw, db}, ranges.buffer});
}

// Of every three experts, one has no rows; each expert's rows begin within the buffer.
Ranges random_ranges(int experts, int sources, std::int64_t buffer, std::mt19937& random) {
  Ranges ranges{buffer, sources, {}};
  for (int e = 0; e < experts; ++e) {
    ranges.bounds.push_back(std::int32_t(random() % 4));
    for (int s = 0; s < sources; ++s) {
      const auto most = unsigned(buffer - 3) / unsigned(sources);
      ranges.bounds.push_back(ranges.bounds.back() + (e % 3 == 1 ? 0 : std::int32_t(random() % (most + 1))));
    }
  }
  return ranges;
}

const Ranges uneven{150, 2, {0, 3, 150, 5, 5, 5, 17, 20, 84, 0, 1, 1}};  // full, empty, from within, one row

}  // namespace

TEST_CASE("expert products on tensor cores over uneven ranges") {
  check_products(DType::bf16, uneven, 136, 72);
  check_products(DType::bf16, uneven, 8, 264);
}

TEST_CASE("expert products on tensor cores over several tiles down and across") {
  check_products(DType::bf16, {140, 1, {1, 140, 0, 129}}, 136, 40);
}

TEST_CASE("expert products on tensor cores without filled rows") {
  check_products(DType::bf16, {40, 1, {0, 0, 7, 7}}, 40, 24);
}

TEST_CASE("gradients of experts' weights have the same bits in whole tiles and in quarters") {
  std::mt19937 random(13);
  for (const int experts : {1, 2, 33}) {
    const Ranges ranges = random_ranges(experts, 2, 70, random);
    const std::int64_t n = experts == 33 ? 24 : 264, k = experts == 33 ? 136 : 200;
    Tensor rows({DType::i32, {experts, 3}}), dw({DType::f32, {experts, n, k}}), db({DType::f32, {experts, n}});
    std::memcpy(rows.as<std::int32_t>(), ranges.bounds.data(), ranges.bounds.size() * 4);
    for (Tensor* tensor : {&dw, &db}) fill(*tensor, random);
    const Tensor dy = rows_tensor(DType::bf16, ranges, n, random), x = rows_tensor(DType::bf16, ranges, k, random);
    for (const bool adds : {false, true}) {
      Case whole{"expert_linear_dw", {dy, x, rows}, {dw, db}, ranges.buffer};
      if (adds) whole.operands.insert(whole.operands.end(), {dw, db});
      const std::int64_t tiles = experts * ops::device::divide_up(n, 128) * ops::device::divide_up(k, 128);
      std::set<int> quartered;
      whole.multiprocessors = 1;
      check_against_cpu(whole);
      const Case expected = run_emulated(whole, true, 3);
      for (const int multiprocessors : {1, 4, 5, 11, 132}) {
        Case c = whole;
        c.multiprocessors = multiprocessors;
        quartered.insert(ops::device::quartered_tiles(tiles, DeviceOf(multiprocessors).traits()));
        const Case found = run_emulated(c, true, 3);
        for (std::size_t r = 0; r < 2; ++r) CHECK(found.results[r] == expected.results[r]);
      }
      CHECK(quartered.contains(0));
      CHECK(quartered.contains(int(tiles)));
      CHECK(quartered.size() > 2);
    }
  }
}

TEST_CASE("expert products of one expert and of more than a warp has threads") {
  std::mt19937 random(11);
  for (const int experts : {1, 33}) {
    check_products(DType::bf16, random_ranges(experts, 2, 24, random), 16, 24);
    check_products(DType::f32, random_ranges(experts, 1, 24, random), 9, 10);
  }
}

TEST_CASE("expert products of f32 and of unaligned rows") {
  check_products(DType::f32, uneven, 67, 33);
  check_products(DType::bf16, uneven, 67, 33);
  check_products(DType::bf16, uneven, 64, 33);
}

namespace {

// Block b of n finds the tiles b, b + n, ... and lists them once all threads of its warp agree.
template <ops::device::ExpertProduct product, int tile_rows, int tile_columns, class T>
struct ListTiles {
  static constexpr int threads = 32;
  ops::device::GroupedOperands<T> p;
  std::vector<ops::device::GroupedTile>* list;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ops::device::GroupedTile tile;
    for (int index = int(block.index());
         ops::device::GroupedTiles().find<product, tile_rows, tile_columns>(block, p, index, tile);
         index += int(block.count())) {
      for (const int field : {tile.expert, tile.row, tile.column, tile.rows, int(tile.first_row)})
        LANCET_CHECK(block.shuffle(field, 0) == field, "tile {}: threads of a warp differ", index);
      if (block.thread() == 0) list->push_back(tile);
    }
  }
};

template <ops::device::ExpertProduct product, int tile_rows, int tile_columns, class T>
std::vector<ops::device::GroupedTile> list_tiles(const ops::device::GroupedOperands<T>& p, std::int64_t blocks) {
  std::vector<ops::device::GroupedTile> list;
  HostStream stream;
  const ListTiles<product, tile_rows, tile_columns, T> kernel{p, &list};
  LANCET_CHECK(ops::device::launch(stream, blocks, kernel).ok(), "a launch failed");
  return list;
}

}  // namespace

TEST_CASE("blocks cover every tile of every expert exactly once") {
  using ops::device::ExpertProduct, ops::device::GroupedTile;
  const std::vector<std::int32_t> filled{5, 5, 0, 2500, 17, 18, 9, 3};  // none, 20 tiles down, one row, none
  ops::device::GroupedOperands<bf16> p{};
  p.filled = filled.data();
  p.experts = 4, p.sources = 1, p.buffer_rows = 3000, p.width = 700, p.height = 130;
  for (int blocks : {1, 7, 64, 500}) {
    const auto taken = list_tiles<ExpertProduct::forward, 128, 128>(p, blocks);
    const auto taken_gradients = list_tiles<ExpertProduct::dw, 128, 128>(p, blocks);
    std::set<std::tuple<int, int, int>> tiles, gradients;
    for (const GroupedTile& tile : taken) {
      CHECK(tile.first_row == tile.expert * 3000 + filled[std::size_t(2 * tile.expert)]);
      CHECK(tile.rows == (tile.expert == 1 ? 2500 : 1));
      tiles.insert({tile.expert, tile.row, tile.column});
    }
    for (const GroupedTile& tile : taken_gradients) gradients.insert({tile.expert, tile.row, tile.column});
    CHECK(taken.size() == 21 * 6);
    CHECK(tiles.size() == 21 * 6);
    CHECK(tiles.contains({1, 19 * 128, 5 * 128}));
    CHECK(tiles.contains({2, 0, 5 * 128}));
    CHECK(taken_gradients.size() == 4 * 2 * 6);  // also of experts without rows: zeros
    CHECK(gradients.size() == 4 * 2 * 6);
    CHECK(gradients.contains({3, 128, 640}));
  }
  for (const int quartered : {1, 12, 48}) {  // the last tile of all, of expert 3, and all
    p.quartered = quartered;
    std::set<std::tuple<int, int, int>> covered;
    int quarters = 0;
    for (const GroupedTile& tile : list_tiles<ExpertProduct::dw, 128, 128>(p, 5)) {
      quarters += tile.quarter;
      CHECK(tile.rows == std::vector{0, 2500, 1, 0}[std::size_t(tile.expert)]);
      if (quartered < 48)
        CHECK(tile.quarter == (tile.expert == 3 && (quartered == 12 || tile.row + tile.column >= 768)));
      for (int row = 0; row < (tile.quarter ? 64 : 128); row += 64)
        for (int column = 0; column < (tile.quarter ? 64 : 128); column += 64)
          CHECK(covered.insert({tile.expert, tile.row + row, tile.column + column}).second);
    }
    CHECK(quarters == 4 * quartered);
    CHECK(covered.size() == 4 * 48);
  }
}

TEST_CASE("few tiles beyond whole rounds are computed as quarters") {
  using ops::device::quartered_tiles;
  CHECK(quartered_tiles(288, hopper_traits) == 24);  // two experts of 768 x 3072
  CHECK(quartered_tiles(144, hopper_traits) == 12);
  CHECK(quartered_tiles(36, hopper_traits) == 36);
  CHECK(quartered_tiles(66, hopper_traits) == 66);  // 264 quarters, two a multiprocessor
  for (const std::int64_t tiles : {0, 67, 131, 132, 264, 1152}) CHECK(quartered_tiles(tiles, hopper_traits) == 0);
}

TEST_CASE("the list of tiles goes from expert to expert, whatever their number") {
  using ops::device::ExpertProduct, ops::device::GroupedTile;
  std::mt19937 random(5);
  for (const int experts : {1, 2, 31, 32, 33, 64, 70}) {
    for (const int sources : {1, 3}) {
      INFO(experts << " experts, " << sources << " sources");
      const Ranges ranges = random_ranges(experts, sources, 60, random);
      ops::device::GroupedOperands<float> p{};
      p.filled = ranges.bounds.data();
      p.experts = experts, p.sources = sources, p.buffer_rows = ranges.buffer, p.width = 17;
      const auto list = list_tiles<ExpertProduct::forward, 8, 16>(p, 1);
      std::size_t next = 0;
      for (int e = 0; e < experts; ++e) {
        const std::int32_t* range = p.filled + e * (sources + 1);
        const int rows = range[sources] - range[0], count = (rows + 7) / 8 * 2;
        std::set<std::pair<int, int>> of_expert;
        REQUIRE(list.size() >= next + std::size_t(count));
        for (int i = 0; i < count; ++i) {
          const GroupedTile& tile = list[next++];
          REQUIRE(tile.expert == e);
          REQUIRE(tile.first_row == e * ranges.buffer + range[0]);
          REQUIRE(tile.rows == rows);
          REQUIRE((tile.row % 8 == 0 && tile.row < rows && (tile.column == 0 || tile.column == 16)));
          of_expert.insert({tile.row, tile.column});
        }
        REQUIRE(of_expert.size() == std::size_t(count));
      }
      CHECK(next == list.size());
    }
  }
}

TEST_CASE("a product has one block per tile, up to a limit") {
  using ops::device::blocks_of_tiles;
  for (const std::int64_t tiles : {0, 1, 321, 5000}) CHECK(blocks_of_tiles(tiles, hopper_traits) == tiles);
  CHECK(blocks_of_tiles(std::int64_t{1} << 40, hopper_traits) == 31 * 264);
  CHECK(blocks_of_tiles(std::int64_t{1} << 40, {.multiprocessors = 108}) == 31 * 216);
}
