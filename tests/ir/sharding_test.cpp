// The text of shardings, and the shapes of shards.
#include <algorithm>
#include <random>

#include "lancet/ir/mesh.h"
#include "lancet/ir/sharding.h"

namespace lancet {

using ir::Dimension;
using ir::Sharding;

namespace {

const ir::Mesh mesh_2x3x2{{1, 2, 3, 2}};  // data 2, expert 3, tensor 2

// "64{data,expert}" and so on, one for each dimension.
Sharding sharding_of(std::initializer_list<const char*> dimensions, ir::Axes partial = {}) {
  Sharding sharding{{}, partial};
  for (const char* text : dimensions) sharding.dimensions.push_back(ir::parse_dimension(text).value().split);
  return sharding;
}

std::string shard_error(const Shape& shape, const Sharding& sharding) {
  const auto shard = ir::shard_shape(shape, sharding, mesh_2x3x2);
  return shard.ok() ? "none, but " + to_string(*shard) : shard.error().message;
}

}  // namespace

TEST_CASE("sharding: the text of a dimension is read and printed unchanged") {
  for (const char* text : {"0", "512", "64{data}", "64{data,expert}", "64{expert,data}", "3x256{tensor}",
                           "4+1+1x256{tensor}", "2+3x0{tensor}", "12{stage,data,expert,tensor}"})
    CHECK(ir::to_string(ir::parse_dimension(text).value()) == text);
  CHECK(ir::parse_dimension("3x256{tensor}") == Dimension{768, {{ir::Axis::tensor}, 3}});
  CHECK(ir::parse_dimension("4+1+1x256{tensor}") == Dimension{1536, {{ir::Axis::tensor}, ir::Blocks::of({8, 2, 2})}});
  CHECK(ir::Blocks::of({2, 2, 2}) == 3);
  CHECK(ir::parse_dimension("64{data,expert}") == Dimension{64, {{ir::Axis::data, ir::Axis::expert}, 1}});
}

TEST_CASE("sharding: other texts are no dimension") {
  for (const char* text : {"",
                           "-1",
                           "x",
                           "64{",
                           "64}",
                           "64{}",
                           "64{data",
                           "64{rank}",
                           "64{data,}",
                           "64{,data}",
                           "64{data,data}",
                           "64{data} ",
                           " 64",
                           "064{data}",
                           "1x64{data}",
                           "0x64{data}",
                           "3x256",
                           "x4{data}",
                           "3x{data}",
                           "3x2x4{data}",
                           "1+1x4{data}",  // 2x4
                           "4+2x4{data}",  // 2+1x8
                           "4+x4{data}",
                           "+4x4{data}",
                           "4+0x4{data}",
                           "4+-1x4{data}",
                           "4+1+1",
                           "9223372036854775807+1x0{data}",
                           "4611686018427387904+1x4{data}",
                           "4611686018427387904x4{data}",
                           "64{data}{expert}"})
    CHECK_FALSE(ir::parse_dimension(text).has_value());
}

TEST_CASE("sharding: the text of a shape") {
  CHECK(to_string(Shape{64, 512, 768}, sharding_of({"64{data,expert}", "512", "768"})) == "64{data,expert},512,768");
  CHECK(to_string(Shape{768}, sharding_of({"3x256{tensor}"}, {ir::Axis::expert, ir::Axis::data})) ==
        "3x256{tensor} partial{data,expert}");
  CHECK(to_string(Shape{8, 4}, Sharding::whole(2)) == "8,4 whole");
}

TEST_CASE("sharding: axes that are named") {
  CHECK(Sharding::whole(3).is_whole());
  CHECK_FALSE(sharding_of({"8"}, {ir::Axis::data}).is_whole());
  CHECK(sharding_of({"8{tensor}", "4{expert}"}, {ir::Axis::data}).used() ==
        ir::Axes{ir::Axis::data, ir::Axis::expert, ir::Axis::tensor});
}

TEST_CASE("sharding: shapes of shards") {
  auto shape = [](const Shape& whole, const Sharding& sharding) {
    return to_string(ir::shard_shape(whole, sharding, mesh_2x3x2).value());
  };
  CHECK(shape({12, 5, 8}, sharding_of({"12{data,expert}", "5", "8{tensor}"})) == "2,5,4");
  CHECK(shape({12}, sharding_of({"3x4{tensor}"}, {ir::Axis::data})) == "6");
  CHECK(shape({24}, sharding_of({"4+1+1x4{tensor}"}, {ir::Axis::data})) == "12");
  CHECK(shape({}, Sharding::whole(0)) == "");
  CHECK(shape({7}, sharding_of({"7{stage}"})) == "7");  // one stage
  CHECK(shape({0}, sharding_of({"4611686018427387904x0{data,tensor}"})) == "0");
}

TEST_CASE("sharding: the shape of which each rank has a shard, and the ranks that hold the same one") {
  CHECK(ir::whole_shape({2, 5, 4}, sharding_of({"12{data,expert}", "5", "8{tensor}"}), mesh_2x3x2) == Shape{12, 5, 8});
  CHECK(ir::whole_shape({6}, sharding_of({"3x4{tensor}"}), mesh_2x3x2) == Shape{12});
  CHECK(ir::whole_shape({6, 2}, Sharding::whole(2), mesh_2x3x2) == Shape{6, 2});
  const ir::Axes all{ir::Axis::stage, ir::Axis::data, ir::Axis::expert, ir::Axis::tensor};
  CHECK(ir::holders(std::nullopt) == all);
  CHECK(ir::holders(Sharding::whole(2)) == all);
  CHECK(ir::holders(sharding_of({"12{data,expert}"})) == ir::Axes{ir::Axis::stage, ir::Axis::tensor});
  CHECK((ir::holders(sharding_of({"12{expert}"})) & mesh_2x3x2.wide()) == ir::Axes{ir::Axis::data, ir::Axis::tensor});
}

TEST_CASE("sharding: errors name the dimension, the axes and the numbers") {
  CHECK(shard_error({4, 50257}, sharding_of({"4", "50257{tensor}"})) ==
        "dimension 1: expected a multiple of 2, the ranks along tensor, found 50257");
  CHECK(shard_error({8}, sharding_of({"8{data,expert}"})) ==
        "dimension 0: expected a multiple of 6, the ranks along data,expert, found 8");
  CHECK(shard_error({12}, sharding_of({"4x3{tensor}"})) ==
        "dimension 0: expected a multiple of 2, the ranks along tensor, found 3 in each of 4 blocks");
  CHECK(shard_error({4, 8}, sharding_of({"4{data}", "8{tensor,data}"})) ==
        "dimension 1: expected each axis once in a sharding, found data again");
  CHECK(shard_error({4, 8}, sharding_of({"4{data}", "8"}, {ir::Axis::data})) ==
        "dimension 0: expected each axis once in a sharding, found data again");
  CHECK(shard_error({4, 8}, sharding_of({"4"})) == "expected a split for each of 2 dimensions, found 1");
  CHECK(shard_error({18}, sharding_of({"4+1+1x3{tensor}"})) ==
        "dimension 0: expected a multiple of 2, the ranks along tensor, found 3 in a unit of blocks of 4+1+1");
  CHECK(shard_error({12}, sharding_of({"2+3x1{data}"})) ==
        "dimension 0: expected blocks of such widths, found 2+3 in 12");
  CHECK(shard_error({7}, sharding_of({"3x2{data}"})) == "dimension 0: expected blocks of equal size, found 3 in 7");
}

// Coordinates and groups of ranks, and the text of axes.

using ir::Axes;
using ir::Axis;
using ir::Mesh;

TEST_CASE("mesh: coordinates stand with the tensor axis innermost") {
  const Mesh mesh{{1, 2, 2, 2}};
  CHECK(mesh.ranks() == 8);
  CHECK(mesh.coordinate(5, Axis::data) == 1);
  CHECK(mesh.coordinate(5, Axis::expert) == 0);
  CHECK(mesh.coordinate(5, Axis::tensor) == 1);
  CHECK(mesh.coordinate(5, Axis::stage) == 0);
}

TEST_CASE("mesh: a group has the ranks that differ on its axes only") {
  const Mesh mesh{{1, 2, 3, 2}};
  CHECK(mesh.group(7, {Axis::tensor}) == std::vector{6, 7});
  CHECK(mesh.group(7, {Axis::expert}) == std::vector{7, 9, 11});
  CHECK(mesh.group(7, {Axis::data}) == std::vector{1, 7});
  CHECK(mesh.group(7, {Axis::data, Axis::expert}) == std::vector{1, 3, 5, 7, 9, 11});
  CHECK(mesh.group(7, {}) == std::vector{7});
}

TEST_CASE("mesh: each rank's place is its index in its group, on every mesh of up to 24 ranks") {
  for (int stage = 1; stage <= 2; ++stage)
    for (int data = 1; data <= 3; ++data)
      for (int expert = 1; expert <= 2; ++expert)
        for (int tensor = 1; tensor <= 2; ++tensor) {
          const Mesh mesh{{stage, data, expert, tensor}};
          for (const Axes axes : {Axes{}, Axes{Axis::data}, Axes{Axis::data, Axis::expert},
                                  Axes{Axis::stage, Axis::tensor}, Axes{Axis::data, Axis::expert, Axis::tensor}})
            for (int rank = 0; rank < mesh.ranks(); ++rank) {
              const std::vector<int> group = mesh.group(rank, axes);
              REQUIRE(int(group.size()) == mesh.size(axes));
              REQUIRE(group[std::size_t(mesh.place(rank, axes))] == rank);
            }
        }
}

TEST_CASE("mesh: sets of axes") {
  constexpr Axes a{Axis::data, Axis::expert}, b{Axis::expert, Axis::tensor};
  CHECK((a | b) == Axes{Axis::data, Axis::expert, Axis::tensor});
  CHECK((a & b) == Axes{Axis::expert});
  CHECK(a - b == Axes{Axis::data});
  CHECK(a - a == Axes{});
  CHECK(Axes{}.count() == 0);
  CHECK((a | b).count() == 3);
  CHECK(Axes(ir::all_axes).count() == ir::axis_count);
  CHECK(Axes(std::vector{Axis::tensor, Axis::data}) == Axes{Axis::data, Axis::tensor});
}

TEST_CASE("mesh: texts of axes and meshes") {
  CHECK(to_string(Axes{Axis::expert, Axis::data}) == "data,expert");
  CHECK(ir::parse_axes("data,expert") == Axes{Axis::data, Axis::expert});
  CHECK(ir::parse_axes("") == Axes{});
  for (const char* wrong : {"expert,data", "data,", ",data", "data,data", "rank", "Data"})
    CHECK_FALSE(ir::parse_axes(wrong).has_value());
  CHECK(to_string(Mesh{{1, 2, 4, 1}}) == "data 2 x expert 4");
  CHECK(to_string(Mesh{}) == "1 rank");
  CHECK(Mesh{{1, 2, 1, 4}}.wide() == Axes{Axis::data, Axis::tensor});
  CHECK(ir::of_experts(4) == Mesh{{1, 1, 4, 1}});
  CHECK(describe(Mesh{{1, 2, 4, 1}}) == "data 2 x expert 4; rank r: data r / 4, expert r % 4");
  CHECK(describe(Mesh{{2, 2, 2, 1}}) ==
        "stage 2 x data 2 x expert 2; rank r: stage r / 4, data r / 2 % 2, expert r % 2");
  CHECK(describe(ir::of_experts(4)) == "expert 4; rank r: expert r");
  CHECK(describe(Mesh{}) == "1 rank");
}

// The elements that ranks hold, against an oracle that asks for each element of a tensor.

using ir::HeldRun;

namespace {

struct SplitTensor {
  Shape whole;
  ir::Sharding sharding;
};

// Each axis splits one dimension or none; dimensions have one to three blocks, equal or 3, 1 and 1 units wide.
SplitTensor random_tensor(const ir::Mesh& mesh, std::mt19937& random) {
  const std::size_t rank = random() % 4;
  SplitTensor tensor{{}, ir::Sharding::whole(rank)};
  std::vector<ir::Axis> axes(ir::all_axes.begin(), ir::all_axes.end());
  std::ranges::shuffle(axes, random);
  for (const ir::Axis axis : axes)
    if (rank > 0 && random() % 3 != 0) tensor.sharding.dimensions[random() % rank].axes.push_back(axis);
  for (ir::Split& split : tensor.sharding.dimensions) {
    if (!split.axes.empty())
      split.blocks = std::array{ir::Blocks(1), ir::Blocks(2), ir::Blocks(3), ir::Blocks::of({3, 1, 1})}[random() % 4];
    tensor.whole.push_back(split.blocks.units * shards(split, mesh) * (1 + std::int64_t(random() % 3)));
  }
  return tensor;
}

// True if the rank holds this index of the dimension: its blocks are split among the axes, outermost first.
bool holds_index(std::int64_t index, std::int64_t extent, const ir::Split& split, const ir::Mesh& mesh, int rank) {
  const std::int64_t unit = extent / split.blocks.units;
  std::int64_t in_block = index, block = 0;
  while (in_block >= unit * split.blocks.width(block)) in_block -= unit * split.blocks.width(block++);
  std::int64_t length = unit * split.blocks.width(block);
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
  const ir::Sharding heads{{{{tensor}, 3}, {}}, {}}, groups{{{{tensor}, ir::Blocks::of({2, 1, 1})}, {}}, {}};
  CHECK(ir::held_elements({48, 100}, heads, mesh, 6) ==
        std::vector<HeldRun>{{800, 0, 400}, {2400, 400, 400}, {4000, 800, 400}});
  CHECK(ir::held_elements({48, 100}, groups, mesh, 6) ==
        std::vector<HeldRun>{{1200, 0, 600}, {3000, 600, 300}, {4200, 900, 300}});
  CHECK(ir::held_elements({2, 8}, on_last(2, {{tensor}}), mesh, 6) == std::vector<HeldRun>{{4, 0, 2}, {12, 2, 2}});
  CHECK(ir::held_elements({0, 8}, on_last(2, {{tensor}}), mesh, 6).empty());
  CHECK(ir::held_elements({}, std::nullopt, mesh, 6) == std::vector<HeldRun>{{0, 0, 1}});
  CHECK_THROWS_AS(ir::held_elements({2, 6}, on_last(2, {{tensor}}), mesh, 6), InternalError);
}

}  // namespace lancet
