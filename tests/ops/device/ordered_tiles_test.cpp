// Orders of the tiles of filled rows: which tile comes when, and that products have the same bits in each.
#include "ops/expert_linear/ordered_tiles.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "emulated_kernels.h"
#include "list_tiles.h"
#include "ops/expert_linear/grouped_product.h"

using namespace lancet;
using ops::device::ExpertProduct;
using ops::device::GroupedOperands;
using ops::device::GroupedTile;
using ops::device::GroupedTiles;
using ops::device::OrderedTiles;
using ops::device::TileOrder;

namespace {

constexpr int tile_rows = 8, tile_columns = 16, buffer_rows = 200;

// Experts of which each source rank has 0 to 21 rows, or none at all; the rows begin within the buffer.
std::vector<std::int32_t> random_rows(int experts, int sources, std::mt19937& random) {
  std::vector<std::int32_t> filled;
  for (int e = 0; e < experts; ++e) {
    const bool none = random() % 5 == 0;
    filled.push_back(std::int32_t(random() % 4));
    for (int s = 0; s < sources; ++s)
      filled.push_back(filled.back() + std::int32_t(none || random() % 3 == 0 ? 0 : random() % 22));
  }
  return filled;
}

GroupedOperands<float> operands(const std::vector<std::int32_t>& filled, int experts, int sources) {
  GroupedOperands<float> p{};
  p.filled = filled.data();
  p.experts = experts, p.sources = sources, p.buffer_rows = buffer_rows, p.width = 40;
  return p;
}

template <class Tiles>
std::vector<GroupedTile> all_of(Tiles tiles, const GroupedOperands<float>& p) {
  return test::list_tiles<ExpertProduct::forward, tile_rows, tile_columns>(tiles, p, 1);
}

auto fields(const GroupedTile& t) { return std::tuple(t.expert, t.row, t.column, t.first_row, t.rows); }

// The distance of the farthest rank with rows in the tile.
int farthest(const GroupedOperands<float>& p, const GroupedTile& tile, int rank) {
  const std::int32_t* filled = p.filled + tile.expert * (p.sources + 1);
  const int begin = filled[0] + tile.row, end = std::min(begin + tile_rows, filled[p.sources]);
  int distance = -1;
  for (int s = 0; s < p.sources; ++s)
    if (std::max(begin, filled[s]) < std::min(end, filled[s + 1]))
      distance = std::max(distance, (s - rank + p.sources) % p.sources);
  return distance;
}

template <TileOrder order>
void check_order(const GroupedOperands<float>& p, int rank) {
  const auto list = all_of(OrderedTiles<order>{rank}, p), plain = all_of(GroupedTiles(), p);
  std::set<std::tuple<int, int, int, std::int64_t, int>> found, expected;
  for (const GroupedTile& tile : list) found.insert(fields(tile));
  for (const GroupedTile& tile : plain) expected.insert(fields(tile));
  REQUIRE(list.size() == plain.size());
  REQUIRE(found == expected);
  for (std::size_t i = 1; i < list.size(); ++i) {
    const int before = farthest(p, list[i - 1], rank), after = farthest(p, list[i], rank);
    if (order == TileOrder::arrival)
      REQUIRE(before <= after);
    else
      REQUIRE(before >= after);
  }
}

// A product whose tiles are taken in an order.
template <class Product, TileOrder order>
struct InOrder {
  static constexpr int threads = Product::threads;
  using Shared = typename Product::Shared;
  Product product;
  int rank;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    product.multiply(block, OrderedTiles<order>{rank});
  }
};
template <TileOrder order, class Product>
auto in_order(const Product& product, int rank) {
  return InOrder<Product, order>{product, rank};
}

template <class T>
struct alignas(16) Eight {
  T values[8];
};
template <class T>
std::vector<Eight<T>> normals(std::int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<Eight<T>> list(std::size_t(n / 8));
  for (Eight<T>& eight : list)
    for (T& value : eight.values) value = from_f32<T>(normal(random));
  return list;
}
template <class T>
bool same_bits(const std::vector<Eight<T>>& a, const std::vector<Eight<T>>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(Eight<T>)) == 0;
}

template <class T, class Make>
void check_bits(const Make& make, const std::vector<std::int32_t>& filled, int experts, int sources) {
  std::mt19937 random(3);
  const auto a = normals<T>(experts * buffer_rows * 24, random), b = normals<T>(experts * 24 * 72, random);
  GroupedOperands<T> p{};
  p.a = a[0].values, p.b = b[0].values, p.filled = filled.data();
  p.experts = experts, p.sources = sources, p.buffer_rows = buffer_rows, p.depth = 24;
  p.width = p.all_columns = 72;
  test::HostStream stream;
  const auto run = [&](const auto& order_of) {
    std::vector<Eight<T>> c(std::size_t(experts * buffer_rows * 72 / 8));
    p.c = c.data();
    REQUIRE(ops::device::launch(stream, 3, order_of(make(p))).ok());
    return c;
  };
  const auto plain = run([](const auto& product) { return product; });
  CHECK_FALSE(same_bits(plain, std::vector<Eight<T>>(plain.size())));
  for (int rank = 0; rank < sources; ++rank) {
    CHECK(same_bits(plain, run([&](const auto& product) { return in_order<TileOrder::arrival>(product, rank); })));
    CHECK(same_bits(plain, run([&](const auto& product) { return in_order<TileOrder::farthest>(product, rank); })));
  }
}

}  // namespace

TEST_CASE("tiles of the ranks that come first, or are the farthest, are first, and each tile comes once") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int sources = 1 + int(random() % 6), experts = 1 + int(random() % (round % 10 == 0 ? 40 : 4));
    const auto filled = random_rows(experts, sources, random);
    const auto p = operands(filled, experts, sources);
    for (int rank = 0; rank < sources; ++rank) {
      INFO("round " << round << ", rank " << rank << " of " << sources);
      check_order<TileOrder::arrival>(p, rank);
      check_order<TileOrder::farthest>(p, rank);
    }
  }
}

TEST_CASE("the order of tiles by hand") {
  const std::vector<std::int32_t> filled{0, 20, 36, 48};  // of ranks 0, 1 and 2; tiles of 8 rows
  auto p = operands(filled, 1, 3);
  p.width = tile_columns;
  const auto rows = [&](const std::vector<GroupedTile>& list) {
    std::vector<int> tiles;
    for (const GroupedTile& tile : list) tiles.push_back(tile.row / tile_rows);
    return tiles;
  };
  // Tile 2 has rows of 0 and 1, tile 4 of 1 and 2. Rank 1 has its own, then those of 2, and those of 0 as the last.
  CHECK(rows(all_of(OrderedTiles<TileOrder::arrival>{0}, p)) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(rows(all_of(OrderedTiles<TileOrder::arrival>{1}, p)) == std::vector<int>{3, 4, 5, 0, 1, 2});
  CHECK(rows(all_of(OrderedTiles<TileOrder::arrival>{2}, p)) == std::vector<int>{5, 0, 1, 2, 3, 4});
  CHECK(rows(all_of(OrderedTiles<TileOrder::farthest>{1}, p)) == std::vector<int>{0, 1, 2, 4, 5, 3});
}

TEST_CASE("products have the same bits in every order of tiles") {
  std::mt19937 random(2);
  const int experts = 3, sources = 4;
  const auto filled = random_rows(experts, sources, random);
  using namespace ops::device;
  constexpr auto forward = ExpertProduct::forward, dx = ExpertProduct::dx;
  check_bits<float>([](const auto& p) { return GroupedPlainProduct<float, forward>{p}; }, filled, experts, sources);
  check_bits<float>([](const auto& p) { return GroupedPlainProduct<float, dx>{p}; }, filled, experts, sources);
  check_bits<bf16>([](const auto& p) { return GroupedTensorProduct<forward>{p}; }, filled, experts, sources);
  check_bits<bf16>([](const auto& p) { return GroupedTensorProduct<dx>{p}; }, filled, experts, sources);
}
