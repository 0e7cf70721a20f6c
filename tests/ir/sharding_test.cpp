// The text of shardings, and the shapes of shards.
#include "lancet/ir/sharding.h"

using namespace lancet;
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
  for (const char* text :
       {"0", "512", "64{data}", "64{data,expert}", "64{expert,data}", "3x256{tensor}", "12{stage,data,expert,tensor}"})
    CHECK(ir::to_string(ir::parse_dimension(text).value()) == text);
  CHECK(ir::parse_dimension("3x256{tensor}") == Dimension{768, {{ir::Axis::tensor}, 3}});
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
  CHECK(shard_error({7}, sharding_of({"3x2{data}"})) == "dimension 0: expected blocks of equal size, found 3 in 7");
}
