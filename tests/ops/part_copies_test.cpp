// Copies of parts: what they put together, and the memory that they leave as it is.
#include <catch2/catch.hpp>
#include <vector>

#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

GuardedTensor numbers(const ir::TensorType& type, float first) {
  GuardedTensor tensor(type);
  for (std::int64_t i = 0; i < type.shape.elements(); ++i) tensor.as<float>()[i] = first + float(i);
  return tensor;
}

std::vector<float> values(const GuardedTensor& tensor) {
  const float* data = tensor.as<float>();
  return {data, data + tensor.type().shape.elements()};
}

GuardedTensor rows(const std::vector<std::int32_t>& bounds) {
  GuardedTensor tensor({DType::i32, {std::int64_t(bounds.size()) / 2, 2}});
  std::copy(bounds.begin(), bounds.end(), tensor.as<std::int32_t>());
  return tensor;
}

}  // namespace

TEST_CASE("concat puts parts one after another, copy takes one") {
  const ir::TensorType part{DType::f32, {1, 3}};
  const Outcome whole = run(ops::op("concat"), {numbers(part, 0), numbers(part, 10), numbers(part, 20)}, {});
  CHECK(whole.results[0].type() == ir::TensorType{DType::f32, {3, 3}});
  CHECK(values(whole.results[0]) == std::vector<float>{0, 1, 2, 10, 11, 12, 20, 21, 22});
  CHECK(values(run(ops::op("copy"), {numbers(part, 7)}, {}).results[0]) == std::vector<float>{7, 8, 9});
}

TEST_CASE("merge_slots takes from each part the rows that it has filled") {
  // Two experts with three rows each. Part 0 has filled row 0 of the first expert, part 1 row 1 of it and rows 0 and 1
  // of the second.
  const ir::TensorType buffer{DType::f32, {2, 3, 1}};
  const Outcome merged = run(ops::op("merge_slots"),
                             {numbers(buffer, 0), rows({0, 1, 0, 0}), numbers(buffer, 10), rows({1, 2, 0, 2})}, {});
  const std::vector<float> found = values(merged.results[0]);
  CHECK(found[0] == 0);
  CHECK(found[1] == 11);
  CHECK(found[3] == 13);
  CHECK(found[4] == 14);
}

TEST_CASE("copies refuse what does not fit") {
  auto refused = [](std::string_view name, const std::vector<ir::TensorType>& types) {
    return !ops::op(name).infer({types, {}}).ok();
  };
  const ir::TensorType buffer{DType::f32, {4, 3, 2}}, rows{DType::i32, {4, 3}}, filled{DType::i32, {4, 2}};
  CHECK(refused("copy", {{DType::i64, {4}}}));
  CHECK(refused("concat", {buffer, {DType::f32, {4, 3, 1}}}));
  CHECK(refused("merge_slots", {buffer, rows, buffer}));
  CHECK(refused("merge_slots", {buffer, {DType::i32, {3, 2}}}));
  CHECK(refused("merge_slots", {buffer, rows, {DType::f32, {4, 3, 1}}, rows}));
  CHECK(refused("merge_slots", {buffer, {DType::i32, {4, 1}}}));
  CHECK_FALSE(refused("merge_slots", {buffer, filled, buffer, rows}));
}
