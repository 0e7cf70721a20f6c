#include "lancet/runtime/tensor_store.h"

#include "support.h"

using namespace lancet;
using ir::TensorKind;

namespace {

ir::Program with(TensorKind kind, const char* name, ir::TensorType type, std::optional<ir::Sharding> sharding = {}) {
  ir::Program p;
  p.add_named(kind, name, type, std::move(sharding));
  return p;
}

const ir::Sharding by_expert{{{{ir::Axis::expert}}, {}}, {}};  // of two dimensions

}  // namespace

TEST_CASE("a store holds parameters and states, zeroed, once each") {
  ir::Program p = with(TensorKind::parameter, "w", {DType::bf16, {3, 5}});
  p.add_named(TensorKind::state, "w.m", {DType::f32, {3, 5}}, by_expert);
  p.add_named(TensorKind::input, "tokens", {DType::i32, {4}});
  p.add_value({DType::f32, {8}});
  runtime::TensorStore store;
  store.add(p);
  REQUIRE(store.all().size() == 2);
  REQUIRE(store.find("tokens") == nullptr);
  REQUIRE(store["w"].type == ir::TensorType{DType::bf16, {3, 5}});
  REQUIRE(store["w"].memory.bytes >= 30);
  REQUIRE_FALSE(store["w"].sharding.has_value());
  REQUIRE(store["w.m"].kind == TensorKind::state);
  REQUIRE(store["w.m"].sharding == by_expert);
  for (int i = 0; i < 15; ++i) REQUIRE(store["w.m"].memory.as<float>()[i] == 0);
  REQUIRE(store.bytes(TensorKind::parameter) == 30);
  REQUIRE(store.bytes(TensorKind::state) == 60);

  store["w.m"].memory.as<float>()[3] = 7;
  const void* before = store["w.m"].memory.data();
  store.add(p);  // existing tensors are kept
  REQUIRE(store["w.m"].memory.data() == before);
  REQUIRE(store["w.m"].memory.as<float>()[3] == 7);
}

TEST_CASE("bytes are written and read inside a tensor, but not beyond its end") {
  runtime::TensorStore store;
  store.add(with(TensorKind::parameter, "w", {DType::f32, {4}}));
  const float values[2] = {3, -5};
  REQUIRE(store.write(store["w"], 4, std::as_bytes(std::span(values))).ok());
  REQUIRE(store["w"].memory.as<float>()[1] == 3);
  REQUIRE(store["w"].memory.as<float>()[3] == 0);
  float back[3] = {1, 1, 1};
  REQUIRE(store.read(store["w"], 4, std::as_writable_bytes(std::span(back))).ok());
  REQUIRE(std::vector<float>(back, back + 3) == std::vector<float>{3, -5, 0});
  REQUIRE_THROWS_AS(store.read(store["w"], 8, std::as_writable_bytes(std::span(back))), InternalError);
  REQUIRE_THROWS_AS(store.write(store["w"], 12, std::as_bytes(std::span(values))), InternalError);
}

TEST_CASE("a name with another type, shape or kind is refused") {
  runtime::TensorStore store;
  store.add(with(TensorKind::parameter, "w", {DType::f32, {3, 5}}));
  REQUIRE_THROWS_WITH(store.add(with(TensorKind::parameter, "w", {DType::f32, {5, 3}})),
                      Catch::Contains("@w is f32[3,5] in the store and f32[5,3] in the program"));
  REQUIRE_THROWS_WITH(store.add(with(TensorKind::parameter, "w", {DType::bf16, {3, 5}})),
                      Catch::Contains("@w is f32[3,5] in the store and bf16[3,5] in the program"));
  REQUIRE_THROWS_AS(store.add(with(TensorKind::state, "w", {DType::f32, {3, 5}})), InternalError);
  REQUIRE_THROWS_AS(store.add(with(TensorKind::parameter, "w", {DType::f32, {3, 5}}, by_expert)), InternalError);
  REQUIRE_NOTHROW(store.add(with(TensorKind::parameter, "w", {DType::f32, {3, 5}})));
  REQUIRE_THROWS_AS(store["v"], InternalError);
}

TEST_CASE("a flat shard knows which elements of its parameter it holds") {
  ir::Program p = with(TensorKind::parameter, "w", {DType::bf16, {25, 4}});
  p.add_named(TensorKind::parameter, "e", {DType::f32, {2, 50}}, by_expert);
  for (const char* owner : {"w", "e"}) {
    const bool split = p[p.find(owner)].sharding.has_value();
    const ir::TensorId id = p.add_state(ir::StateKind::first_moment, owner, {DType::f32, {split ? 64 : 32}});
    p[id].flat_shard = ir::holders(p[p.find(owner)].sharding) & ir::Axes{ir::Axis::data, ir::Axis::expert};
  }
  ir::Mesh mesh;
  mesh[ir::Axis::data] = mesh[ir::Axis::expert] = 2;
  for (int rank = 0; rank < 4; ++rank) {
    runtime::TensorStore store;
    store.set_rank(mesh, rank);
    store.add(p);
    CHECK(store["w.m"].shard_of == "w");
    CHECK(store.whole_shape("w.m") == Shape{25, 4});
    CHECK(store.range_of("w.m") == flat_range(100, 4, rank));
    CHECK(store.range_of("e.m") == flat_range(100, 2, rank / 2));  // among the replicas along data
    CHECK(store.range_of("e") == FlatRange{0, 100});
    CHECK(store.whole_shape("e") == Shape{4, 50});
    CHECK(store.whole_shape("e.m") == Shape{4, 50});
    const std::int64_t first = rank % 2 * 100, part = rank / 2;  // of the rank's experts; of its elements of them
    CHECK(store.held("e") == std::vector<ir::HeldRun>{{first, 0, 100}});
    CHECK(store.held("e.m") == std::vector<ir::HeldRun>{{first + 64 * part, 0, part == 0 ? 64 : 36}});
    CHECK(store.held_by("e", 3) == std::vector<ir::HeldRun>{{100, 0, 100}});
    CHECK(store.divided_over("w").empty());
    CHECK(store.divided_over("e") == ir::Axes{ir::Axis::expert});
    CHECK(store.divided_over("e.m") == ir::Axes{ir::Axis::data, ir::Axis::expert});
  }
  runtime::TensorStore alone;
  alone.add(p);
  CHECK_THROWS_AS(alone.range_of("w.m"), InternalError);  // a shard among four ranks
}
