// Splitting filled slots into parts, and joining parts.
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "lancet/ops/peer_parts.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr std::uint64_t route_seed = 31;
constexpr std::int64_t tokens = 24, experts = 4;
using Bounds = std::vector<std::int64_t>;

const std::vector<Bounds> cuts{{0, 24}, {0, 12, 24}, {0, 1, 24}, {0, 23, 24}, {0, 5, 6, 19, 24}};

ops::Sample sample_of(std::int64_t capacity, std::int64_t choices = 1) {
  return {{{{DType::i32, {tokens, choices}}, ops::Fill::expert}}, {{"capacity", capacity}, {"experts", experts}}};
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

std::vector<GuardedTensor> split(const Decision& whole, const Bounds& bounds) {
  std::vector<GuardedTensor> parts;
  for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
    std::vector<GuardedTensor> operands{slice(whole.expert, 0, bounds[p], bounds[p + 1]),
                                        slice(whole.slot, 0, bounds[p], bounds[p + 1])};
    if (p) operands.push_back(parts.back());
    parts.push_back(checked("split_filled", operands, {{"experts", experts}}));
  }
  return parts;
}

// The kept choices of each part have the slots [begin, end) of their expert, each once, and the parts are consecutive.
void check_filled(const std::vector<GuardedTensor>& parts, const Decision& whole, const Bounds& bounds) {
  const std::int32_t *all = whole.filled.as<std::int32_t>(), *expert = whole.expert.as<std::int32_t>(),
                     *slot = whole.slot.as<std::int32_t>();
  for (std::int64_t e = 0; e < experts; ++e) {
    std::int32_t next = all[2 * e];
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::int32_t* part = parts[p].as<std::int32_t>() + 2 * e;
      std::set<std::int32_t> slots, filled;
      const std::int64_t choices = whole.slot.shape()[1];
      for (std::int64_t i = bounds[p] * choices; i < bounds[p + 1] * choices; ++i)
        if (expert[i] == e && slot[i] >= 0) slots.insert(slot[i]);
      CHECK(part[0] == next);
      for (; next < part[1]; ++next) filled.insert(next);
      CHECK(slots == filled);
    }
    CHECK(next == all[2 * e + 1]);
  }
}

// Of a rank's kernel whose result depends on the rank.
GuardedTensor on_rank(const char* name, const GuardedTensor& operand, const ops::PeerParts& peers, std::int64_t part,
                      std::int64_t rank) {
  ir::Attributes attributes{{"ranks", peers.ranks}, {"part", part}, {"parts", peers.parts}};
  if (peers.own_first) attributes.set("host", peers.host);
  const ops::CpuKernel& kernel = *ops::find_cpu_kernel(name);
  const comm::Group group{int(rank), int(peers.ranks)};
  Outcome outcome = run(ops::op(name), {operand}, attributes, {kernel.bind, kernel.workspace, 1, group});
  CHECK(outcome.faults.empty());
  return outcome.results[0];
}

GuardedTensor numbers(std::int64_t rows, std::int64_t columns, const std::vector<std::int32_t>& values) {
  GuardedTensor tensor({DType::i32, {rows, columns}});
  std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
  return tensor;
}

std::vector<std::int32_t> values_of(const GuardedTensor& tensor) {
  const auto* data = tensor.as<std::int32_t>();
  return {data, data + tensor.shape().elements()};
}

// Every part of every rank: what `from` sends to `to` is what `to` receives from it, in the same part.
void check_peers(const ops::PeerParts& peers) {
  const std::int64_t ranks = peers.ranks;
  const auto sent = [&](std::int64_t from, std::int64_t to) { return std::int32_t((3 * from + 5 * to) % 7); };
  for (std::int64_t to = 0; to < ranks; ++to) {
    std::vector<std::int32_t> bounds{0};  // one expert a rank
    for (std::int64_t from = 0; from < ranks; ++from) bounds.push_back(bounds.back() + sent(from, to));
    const GuardedTensor rows = numbers(1, ranks + 1, bounds);
    std::int32_t end = 0;
    for (std::int64_t part = 0; part < peers.parts; ++part) {
      const std::vector<std::int32_t> received = values_of(on_rank("peer_rows", rows, peers, part, to));
      CHECK(received.front() == end);
      end = received.back();
      int senders = 0;
      for (std::int64_t from = 0; from < ranks; ++from) {
        std::vector<std::int32_t> slots;
        for (std::int64_t e = 0; e < ranks; ++e) slots.insert(slots.end(), {0, sent(from, e)});
        const auto filled = values_of(on_rank("split_peers", numbers(ranks, 2, slots), peers, part, from));
        CHECK(received[std::size_t(from) + 1] - received[std::size_t(from)] ==
              filled[std::size_t(2 * to + 1)] - filled[std::size_t(2 * to)]);
        senders += peers.part_of(from, to) == part;
      }
      CHECK(senders == peers.size(part));
    }
    CHECK(end == bounds.back());
  }
}

Decision by_first_choices(const char* gate, std::int64_t choices, std::int64_t capacity, std::int64_t groups) {
  GuardedTensor logits({DType::f32, {4, tokens / 4, experts}});
  fill_normal(logits, route_seed, 1);
  return decide(logits, choices, gate, {{"capacity", capacity}, {"groups", groups}});
}

}  // namespace

TEST_CASE("split_filled gives the slots that the gate fills in parts") {
  for (const std::int64_t choices : {1, 2, 3})
    for (std::int64_t capacity : {1, 5, 24}) {
      const SampleRoute route(sample_of(capacity, choices), route_seed);
      for (const Bounds& bounds : cuts) {
        const std::vector<GuardedTensor> parts = split(route.whole(), bounds);
        std::vector<Decision> made;
        for (std::size_t p = 0; p < parts.size(); ++p) {
          made.push_back(route.part(bounds[p], bounds[p + 1], p ? &made.back() : nullptr));
          CHECK(parts[p].same_bytes(made[p].filled));
        }
        check_filled(parts, route.whole(), bounds);
        CHECK(checked("join_rows", parts, {}).same_bytes(route.whole().filled));
      }
    }
}

TEST_CASE("the slots of gates that look at the whole batch split like any others") {
  for (const char* gate : {"slots_by_priority", "slots_by_choice"})
    for (const std::int64_t choices : {1, 2})
      for (std::int64_t capacity : {1, 5, 24})
        for (std::int64_t groups : {1, 2})
          for (const Bounds& bounds : cuts) {
            const Decision whole = by_first_choices(gate, choices, capacity, groups);
            check_filled(split(whole, bounds), whole, bounds);
          }
}

TEST_CASE("split_capacity covers each filled slot once") {
  for (std::int64_t capacity : {1, 5, 7, 24})
    for (std::int64_t parts : {1, 2, 3, 8}) {
      const GuardedTensor whole = SampleRoute(sample_of(capacity), route_seed).whole().filled;
      const std::int32_t* all = whole.as<std::int32_t>();
      std::vector<std::int32_t> next(experts), ends(experts);
      for (std::size_t e = 0; e < next.size(); ++e) next[e] = all[2 * e], ends[e] = all[2 * e + 1];
      for (std::int64_t p = 0; p < parts; ++p) {
        const GuardedTensor part = checked("split_capacity", {whole}, {{"part", p}, {"parts", parts}});
        for (std::size_t e = 0; e < next.size(); ++e) {
          const std::int32_t begin = part.as<std::int32_t>()[2 * e], end = part.as<std::int32_t>()[2 * e + 1];
          CHECK(begin == next[e]);
          CHECK(end >= begin);
          CHECK(end - begin <= (ends[e] - all[2 * e] + parts - 1) / parts);  // equal shares
          CHECK(end - begin >= (ends[e] - all[2 * e]) / parts);
          next[e] = end;
        }
      }
      CHECK(next == ends);
    }
}

TEST_CASE("capacity_rows: in each part a rank receives what the others send to it in that part, each once") {
  constexpr std::int64_t ranks = 5;
  const auto sent = [](std::int64_t from, std::int64_t to) { return std::int32_t((3 * from + 5 * to) % 11); };
  for (const std::int64_t parts : {1, 2, 3, 8})
    for (std::int64_t to = 0; to < ranks; ++to) {
      std::vector<std::int32_t> bounds{0};  // one expert a rank
      for (std::int64_t from = 0; from < ranks; ++from) bounds.push_back(bounds.back() + sent(from, to));
      std::int32_t end = 0;
      for (std::int64_t p = 0; p < parts; ++p) {
        const ir::Attributes of_part{{"part", p}, {"parts", parts}, {"ranks", ranks}};
        const auto received = values_of(checked("capacity_rows", {numbers(1, ranks + 1, bounds)}, of_part));
        CHECK(received.front() == end);
        end = received.back();
        for (std::int64_t from = 0; from < ranks; ++from) {
          const auto filled = values_of(checked("split_capacity", {numbers(1, 2, {0, sent(from, to)})}, of_part));
          CHECK(received[std::size_t(from) + 1] - received[std::size_t(from)] == filled[1] - filled[0]);
        }
      }
      CHECK(end == bounds.back());
    }
}

TEST_CASE("peers: in each part a rank receives what the others send to it in that part, each once") {
  for (const std::int64_t ranks : {1, 2, 4, 6, 8})
    for (std::int64_t host = 1; host <= ranks; ++host)
      for (std::int64_t parts = 1; parts <= ranks; ++parts)
        for (const bool own_first : {false, true}) {
          const ops::PeerParts peers{ranks, parts, host, own_first};
          if (!peers.fit()) continue;
          INFO(ranks << " ranks, hosts of " << host << ", " << parts << " parts, own first: " << own_first);
          check_peers(peers);
        }
}

TEST_CASE("peers: the own rank is first, then its host, then tiles of the others") {
  const auto order_of = [](const ops::PeerParts& peers, std::int64_t from) {
    std::vector<std::int64_t> parts;
    for (std::int64_t to = 0; to < peers.ranks; ++to) parts.push_back(peers.part_of(from, to));
    return parts;
  };
  using Parts = std::vector<std::int64_t>;
  CHECK(order_of({8, 4, 4, true}, 0) == Parts{0, 1, 1, 1, 2, 2, 3, 3});
  CHECK(order_of({8, 4, 4, true}, 5) == Parts{3, 2, 2, 3, 1, 0, 1, 1});  // place 1 of each host comes first
  CHECK(order_of({4, 3, 1, true}, 2) == Parts{2, 2, 0, 1});
  CHECK(order_of({4, 2, 2, false}, 3) == Parts{1, 1, 0, 0});
  CHECK_FALSE(ops::PeerParts{8, 2, 4, true}.fit());
  CHECK_FALSE(ops::PeerParts{8, 7, 4, true}.fit());
  CHECK_FALSE(ops::PeerParts{8, 3, 3, true}.fit());
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
  const ir::TensorType choices{DType::i32, {8, 1}}, filled{DType::i32, {4, 2}}, other{DType::i32, {2, 2}},
      rows{DType::i32, {2, 3}}, buffer{DType::f32, {4, 3, 2}};
  const ir::Attributes experts_of_4{{"experts", 4}};
  CHECK(refused("split_filled", {choices, {DType::i32, {7, 1}}}, experts_of_4));
  CHECK(refused("split_filled", {choices, choices, other}, experts_of_4));
  CHECK_FALSE(refused("split_filled", {choices, choices, filled}, experts_of_4));
  CHECK(refused("split_capacity", {filled}, {{"part", 2}, {"parts", 2}}));
  CHECK(refused("split_capacity", {rows}, {{"part", 0}, {"parts", 2}}));
  CHECK(refused("capacity_rows", {rows}, {{"part", 2}, {"parts", 2}, {"ranks", 2}}));
  CHECK(refused("capacity_rows", {rows}, {{"part", 0}, {"parts", 2}, {"ranks", 3}}));
  CHECK_FALSE(refused("capacity_rows", {rows}, {{"part", 0}, {"parts", 2}, {"ranks", 2}}));
  CHECK(refused("join_rows", {filled, {DType::i32, {4, 3}}}, {}));
  CHECK(refused("sum", {buffer, {DType::f32, {4, 3, 1}}}, {}));
  CHECK(refused("sum", {filled, filled}, {}));
  CHECK(refused("all_to_all", {buffer, filled, rows, filled}, {}));
  CHECK(refused("all_to_all", {buffer, filled, rows, filled, filled}, {}));
  CHECK(refused("all_to_all_back", {buffer, filled, rows, other, rows}, {}));
  CHECK_FALSE(refused("all_to_all", {buffer, filled, rows, filled, rows}, {}));
}
