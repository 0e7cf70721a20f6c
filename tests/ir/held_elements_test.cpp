// The elements that ranks hold, against an oracle that asks for each element of a tensor.
#include "lancet/ir/sharding.h"

#include <algorithm>
#include <numeric>
#include <random>

using namespace lancet;
using ir::HeldRun;

namespace {

struct SplitTensor {
  Shape whole;
  ir::Sharding sharding;
};

// Each axis splits one dimension or none; dimensions have one to three blocks.
SplitTensor random_tensor(const ir::Mesh& mesh, std::mt19937& random) {
  const std::size_t rank = random() % 4;
  SplitTensor tensor{{}, ir::Sharding::whole(rank)};
  std::vector<ir::Axis> axes(ir::all_axes.begin(), ir::all_axes.end());
  std::ranges::shuffle(axes, random);
  for (const ir::Axis axis : axes)
    if (rank > 0 && random() % 3 != 0) tensor.sharding.dimensions[random() % rank].axes.push_back(axis);
  for (ir::Split& split : tensor.sharding.dimensions) {
    if (!split.axes.empty()) split.blocks = 1 + std::int64_t(random() % 3);
    tensor.whole.push_back(split.blocks * shards(split, mesh) * (1 + std::int64_t(random() % 3)));
  }
  return tensor;
}

// True if the rank holds this index of the dimension: its blocks are split among the axes, outermost first.
bool holds_index(std::int64_t index, std::int64_t extent, const ir::Split& split, const ir::Mesh& mesh, int rank) {
  std::int64_t in_block = index % (extent / split.blocks), length = extent / split.blocks;
  for (const ir::Axis axis : split.axes) {
    length /= mesh[axis];
    if (in_block / length != mesh.coordinate(rank, axis)) return false;
    in_block %= length;
  }
  return true;
}

// The elements of the whole tensor that the rank holds, in order.
std::vector<std::int64_t> oracle(const SplitTensor& tensor, const ir::Mesh& mesh, int rank) {
  std::vector<std::int64_t> held;
  for (std::int64_t i = 0; i < tensor.whole.elements(); ++i) {
    std::int64_t rest = i;
    bool mine = true;
    for (int d = tensor.whole.rank() - 1; d >= 0; --d) {
      mine &=
          holds_index(rest % tensor.whole[d], tensor.whole[d], tensor.sharding.dimensions[std::size_t(d)], mesh, rank);
      rest /= tensor.whole[d];
    }
    if (mine) held.push_back(i);
  }
  return held;
}

std::vector<std::int64_t> expanded(const std::vector<HeldRun>& runs) {
  std::vector<std::int64_t> elements;
  for (const HeldRun& run : runs) {
    REQUIRE(run.held - runs.front().held == std::int64_t(elements.size()));
    for (std::int64_t i = 0; i < run.count; ++i) elements.push_back(run.whole + i);
  }
  REQUIRE(ir::elements_of(runs) == std::int64_t(elements.size()));
  return elements;
}

ir::Sharding on_last(int dimensions, ir::Split split) {
  ir::Sharding sharding = ir::Sharding::whole(std::size_t(dimensions));
  sharding.dimensions.back() = std::move(split);
  return sharding;
}

}  // namespace

TEST_CASE("held elements: those of random shardings, and all ranks hold each element as often as there are replicas") {
  std::mt19937 random(5);
  for (int seed = 0; seed < 300; ++seed) {
    const ir::Mesh mesh{{1 + int(random() % 2), 1 + int(random() % 3), 1 + int(random() % 3), 1 + int(random() % 2)}};
    const SplitTensor tensor = random_tensor(mesh, random);
    INFO(to_string(mesh) << ": " << ir::to_string(tensor.whole, tensor.sharding));
    std::vector<int> times(std::size_t(tensor.whole.elements()));
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const auto runs = ir::held_elements(tensor.whole, tensor.sharding, mesh, rank);
      const auto expected = oracle(tensor, mesh, rank);
      REQUIRE(expanded(runs) == expected);
      for (std::size_t i = 1; i < runs.size(); ++i) REQUIRE(runs[i].whole > runs[i - 1].whole + runs[i - 1].count);
      for (const std::int64_t element : expected) ++times[std::size_t(element)];
    }
    const int replicas = mesh.size(ir::holders(tensor.sharding));
    REQUIRE(std::ranges::count(times, replicas) == tensor.whole.elements());
  }
}

TEST_CASE("held elements: ranges of the shard, and of the whole tensor") {
  std::mt19937 random(6);
  for (int seed = 0; seed < 100; ++seed) {
    const ir::Mesh mesh{{1, 2, 1 + int(random() % 3), 2}};
    const SplitTensor tensor = random_tensor(mesh, random);
    const int rank = int(random() % std::uint32_t(mesh.ranks()));
    const auto runs = ir::held_elements(tensor.whole, tensor.sharding, mesh, rank);
    const auto all = oracle(tensor, mesh, rank);
    const std::int64_t n = std::int64_t(all.size()), parts = 1 + std::int64_t(random() % 4);
    std::vector<std::int64_t> joined;
    for (std::int64_t place = 0; place < parts; ++place) {  // flat shards
      const FlatRange range = flat_range(n, parts, place);
      const auto part = ir::of_held(runs, range);
      if (!part.empty()) REQUIRE(part.front().held == 0);
      for (const std::int64_t element : expanded(part)) joined.push_back(element);
    }
    REQUIRE(joined == all);
    const std::int64_t a = std::int64_t(random() % std::uint32_t(tensor.whole.elements() + 1)),
                       b = std::int64_t(random() % std::uint32_t(tensor.whole.elements() + 1));
    const FlatRange range{std::min(a, b), std::max(a, b)};
    std::vector<std::int64_t> inside = all;
    std::erase_if(inside, [&](std::int64_t element) { return element < range.begin || element >= range.end; });
    const auto part = ir::of_whole(runs, range);
    REQUIRE(expanded(part) == inside);
    if (!part.empty()) REQUIRE(all[std::size_t(part.front().held)] == inside.front());
  }
}

TEST_CASE("held elements: whole dimensions merge into long runs") {
  const ir::Mesh mesh{{1, 1, 2, 4}};  // rank 6: expert 1, tensor 2
  const ir::Axis tensor = ir::Axis::tensor;
  CHECK(ir::held_elements({8, 1000, 1000}, std::nullopt, mesh, 6) == std::vector<HeldRun>{{0, 0, 8'000'000}});
  const ir::Sharding experts{{{{ir::Axis::expert}}, {}, {}}, {}};
  CHECK(ir::held_elements({8, 1000, 1000}, experts, mesh, 6) == std::vector<HeldRun>{{4'000'000, 0, 4'000'000}});
  const ir::Sharding heads{{{{tensor}, 3}, {}}, {}};
  CHECK(ir::held_elements({48, 100}, heads, mesh, 6) ==
        std::vector<HeldRun>{{800, 0, 400}, {2400, 400, 400}, {4000, 800, 400}});
  CHECK(ir::held_elements({2, 8}, on_last(2, {{tensor}}), mesh, 6) == std::vector<HeldRun>{{4, 0, 2}, {12, 2, 2}});
  CHECK(ir::held_elements({0, 8}, on_last(2, {{tensor}}), mesh, 6).empty());
  CHECK(ir::held_elements({}, std::nullopt, mesh, 6) == std::vector<HeldRun>{{0, 0, 1}});
  CHECK_THROWS_AS(ir::held_elements({2, 6}, on_last(2, {{tensor}}), mesh, 6), InternalError);
}
