// Splitting a route into parts, and joining parts of a route.
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "lancet/ir/route_layout.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr std::uint64_t route_seed = 31;
constexpr std::int64_t tokens = 24, experts = 4;
using Bounds = std::vector<std::int64_t>;

const std::vector<Bounds> cuts{{0, 24}, {0, 12, 24}, {0, 1, 24}, {0, 23, 24}, {0, 5, 6, 19, 24}};

ops::Sample sample_of(std::int64_t capacity) {
  return {{{{DType::route, {tokens, experts}}, ops::Fill::route}}, {{"capacity", capacity}, {"tokens", tokens}}};
}

// The kernel's result, compared with the reference.
GuardedTensor checked(std::string_view name, std::vector<GuardedTensor> operands, const ir::Attributes& attributes) {
  const ops::OpDef& op = ops::op(name);
  const ReferenceCall reference = run_reference(op, operands, attributes);
  const Outcome outcome = run(op, std::move(operands), attributes);
  CHECK(outcome.faults.empty());
  const GuardedTensor& result = outcome.results[0];
  const auto fault = compare(result, reference.results[0], GuardedTensor(result.type()), reference.length);
  INFO(name << ": " << fault.value_or(""));
  CHECK_FALSE(fault.has_value());
  return result;
}

std::vector<GuardedTensor> split(const GuardedTensor& whole, const Bounds& bounds) {
  std::vector<GuardedTensor> parts;
  for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
    std::vector<GuardedTensor> operands{whole};
    if (p) operands.push_back(parts.back());
    parts.push_back(checked("split_route", operands, {{"first", bounds[p]}, {"tokens", bounds[p + 1] - bounds[p]}}));
  }
  return parts;
}

// The kept tokens of each part have the slots [begin, end) of their expert, each once, and the parts are consecutive.
void check_owned(const std::vector<GuardedTensor>& parts, const GuardedTensor& whole) {
  const ir::RouteLayout all{tokens, experts};
  for (std::int64_t e = 0; e < experts; ++e) {
    std::int32_t next = all.begin(whole.data())[e];
    for (const GuardedTensor& part : parts) {
      const ir::RouteLayout at{part.shape()[0], experts};
      std::set<std::int32_t> slots, owned;
      for (std::int64_t t = 0; t < at.tokens; ++t)
        if (at.expert(part.data())[t] == e && at.slot(part.data())[t] >= 0) slots.insert(at.slot(part.data())[t]);
      CHECK(at.begin(part.data())[e] == next);
      for (; next < at.end(part.data())[e]; ++next) owned.insert(next);
      CHECK(slots == owned);
    }
    CHECK(next == all.end(whole.data())[e]);
  }
}

GuardedTensor prioritized_route(std::int64_t capacity) {
  GuardedTensor logits({DType::f32, {4, tokens / 4, experts}});
  fill_normal(logits, route_seed, 1);
  return run(ops::op("batch_prioritized_gate"), {logits}, {{"capacity", capacity}}).results[0];
}

}  // namespace

TEST_CASE("split_route gives the routes that the gate makes in parts") {
  for (std::int64_t capacity : {1, 5, 24}) {
    const SampleRoute route(sample_of(capacity), route_seed);
    for (const Bounds& bounds : cuts) {
      const std::vector<GuardedTensor> parts = split(route.whole(), bounds);
      std::vector<GuardedTensor> made;
      for (std::size_t p = 0; p < parts.size(); ++p) {
        made.push_back(route.part(bounds[p], bounds[p + 1], p ? &made.back() : nullptr));
        CHECK(parts[p].same_bytes(made[p]));
      }
      check_owned(parts, route.whole());
    }
  }
}

TEST_CASE("a batch-prioritized route splits like any other") {
  for (std::int64_t capacity : {1, 5, 24})
    for (const Bounds& bounds : cuts)
      check_owned(split(prioritized_route(capacity), bounds), prioritized_route(capacity));
}

TEST_CASE("join_route undoes split_route") {
  for (const GuardedTensor& whole : {SampleRoute(sample_of(5), route_seed).whole(), prioritized_route(5)})
    for (const Bounds& bounds : cuts) CHECK(checked("join_route", split(whole, bounds), {}).same_bytes(whole));
}

TEST_CASE("split_capacity covers each filled slot once") {
  for (std::int64_t capacity : {1, 5, 7, 24})
    for (std::int64_t parts : {1, 2, 3, 8}) {
      const GuardedTensor whole = SampleRoute(sample_of(capacity), route_seed).whole();
      const ir::RouteLayout all{tokens, experts}, at{0, experts};
      std::vector<std::int32_t> next(all.begin(whole.data()), all.begin(whole.data()) + experts);
      for (std::int64_t p = 0; p < parts; ++p) {
        const GuardedTensor part =
            checked("split_capacity", {whole}, {{"part", p}, {"parts", parts}, {"capacity", capacity}});
        for (std::size_t e = 0; e < next.size(); ++e) {
          const std::int32_t begin = at.begin(part.data())[e], end = at.end(part.data())[e];
          CHECK(begin == next[e]);
          CHECK(end >= begin);
          if (end > begin) CHECK((begin >= capacity * p / parts && end <= capacity * (p + 1) / parts));
          next[e] = end;
        }
      }
      CHECK(next == std::vector<std::int32_t>(all.end(whole.data()), all.end(whole.data()) + experts));
    }
}

TEST_CASE("join_rows spans the rows of all parts") {
  std::vector<GuardedTensor> parts(3, GuardedTensor({DType::i32, {2, 3}}));
  const std::vector<std::vector<std::int32_t>> rows{{0, 2, 3, 0, 0, 0}, {3, 3, 7, 0, 1, 1}, {7, 8, 9, 1, 1, 1}};
  for (std::size_t p = 0; p < 3; ++p) std::copy(rows[p].begin(), rows[p].end(), parts[p].as<std::int32_t>());
  const GuardedTensor joined = checked("join_rows", parts, {});
  const std::int32_t* found = joined.as<std::int32_t>();
  CHECK(std::vector<std::int32_t>(found, found + 6) == std::vector<std::int32_t>{0, 9, 9, 0, 1, 1});
}

TEST_CASE("sum adds any number of parts in their order") {
  for (std::size_t count : {1, 2, 5}) {
    std::vector<GuardedTensor> parts(count, GuardedTensor({DType::f32, {3, 11}}));
    for (std::size_t p = 0; p < count; ++p) fill_normal(parts[p], route_seed, p);
    const GuardedTensor total = checked("sum", parts, {});
    float first = 0;
    for (const GuardedTensor& part : parts) first += part.as<float>()[0];
    CHECK(total.as<float>()[0] == first);
  }
}

TEST_CASE("all-to-alls of several parts against the reference") {
  const SampleRoute route(sample_of(5), route_seed);
  GuardedTensor slots({DType::f32, {experts, 5, 6}});
  fill_normal(slots, route_seed, 9);
  for (const Bounds& bounds : cuts) {
    std::vector<GuardedTensor> operands{slots};
    const std::vector<GuardedTensor> parts = split(route.whole(), bounds);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      std::vector<GuardedTensor> counts{parts[p]};
      if (p) counts.push_back(operands.back());
      operands.push_back(parts[p]);
      operands.push_back(checked("all_to_all_counts", counts, {{"ranks", 1}}));
    }
    const GuardedTensor buffer = checked("all_to_all", operands, {});
    operands[0] = buffer;
    checked("all_to_all_back", operands, {});
  }
}

TEST_CASE("inputs that do not fit are refused") {
  auto refused = [](std::string_view name, const std::vector<ir::TensorType>& types, const ir::Attributes& attributes) {
    const auto result = ops::op(name).infer({types, attributes});
    return !result.ok();
  };
  const ir::TensorType route{DType::route, {8, 4}}, other{DType::route, {8, 2}}, rows{DType::i32, {4, 2}},
      buffer{DType::f32, {4, 3, 2}};
  CHECK(refused("split_route", {route}, {{"first", 5}, {"tokens", 4}}));
  CHECK(refused("split_route", {route}, {{"first", -1}, {"tokens", 4}}));
  CHECK(refused("split_route", {route, other}, {{"first", 0}, {"tokens", 4}}));
  CHECK_FALSE(refused("split_route", {route, route}, {{"first", 4}, {"tokens", 4}}));
  CHECK(refused("split_capacity", {route}, {{"part", 2}, {"parts", 2}, {"capacity", 4}}));
  CHECK(refused("split_capacity", {rows}, {{"part", 0}, {"parts", 2}, {"capacity", 4}}));
  CHECK(refused("join_route", {route, other}, {}));
  CHECK(refused("join_rows", {rows, {DType::i32, {4, 3}}}, {}));
  CHECK(refused("sum", {buffer, {DType::f32, {4, 3, 1}}}, {}));
  CHECK(refused("sum", {rows, rows}, {}));
  CHECK(refused("all_to_all", {buffer, route, rows, route}, {}));
  CHECK(refused("all_to_all", {buffer, route, rows, route, {DType::i32, {2, 3}}}, {}));
  CHECK(refused("all_to_all_back", {buffer, route, rows, other, rows}, {}));
  CHECK_FALSE(refused("all_to_all", {buffer, route, rows, route, rows}, {}));
}
