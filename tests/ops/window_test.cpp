// Windows over slots that shards split in space. A shard has windows of its own slots (src/ops/parts/window/op.cpp), so
// that one round of it cannot be compared with one round of the whole; compared are all rounds together.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// What the windows of all rounds hold together.
struct HeldChoices {
  std::vector<std::int32_t> windows;  // [T*K]: the number of windows that have the choice
  std::vector<std::int32_t> filled;   // [E]: slots

  void add_window(const GuardedTensor& expert, const GuardedTensor& slot, const GuardedTensor& in_slots,
                  std::int64_t capacity);
  void append(const HeldChoices& shard);
};

// Checks that the choices in the window take exactly the slots that the window calls filled, each once.
void HeldChoices::add_window(const GuardedTensor& expert, const GuardedTensor& slot, const GuardedTensor& in_slots,
                             std::int64_t capacity) {
  const std::int64_t experts = in_slots.shape()[0];
  std::vector<std::int32_t> taken(std::size_t(experts * capacity));
  windows.resize(std::size_t(slot.shape().elements()));
  filled.resize(std::size_t(experts));
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const std::int32_t at = slot.as<std::int32_t>()[i];
    if (at < 0) continue;
    REQUIRE(at < capacity);
    ++taken[std::size_t(expert.as<std::int32_t>()[i] * capacity + at)];
    ++windows[i];
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int32_t *range = in_slots.as<std::int32_t>() + 2 * e, begin = range[0], end = range[1];
    for (std::int64_t at = 0; at < capacity; ++at)
      CHECK(taken[std::size_t(e * capacity + at)] == (begin <= at && at < end ? 1 : 0));
    filled[std::size_t(e)] += end - begin;
  }
}

void HeldChoices::append(const HeldChoices& shard) {
  windows.insert(windows.end(), shard.windows.begin(), shard.windows.end());
  filled.resize(shard.filled.size());
  for (std::size_t e = 0; e < filled.size(); ++e) filled[e] += shard.filled[e];
}

// The attributes of one of `shards` in space, by the op's own row.
ir::Attributes share_in_space(const ops::OpDef& op, const ir::Attributes& whole, std::int64_t shards) {
  const auto row = std::ranges::find(op.partition, ops::SplitIn::space, &ops::PartitionRow::in);
  REQUIRE(row != op.partition.end());
  return ops::attributes_of_share(*row, whole, shards);
}

Outcome first_window(const Decision& of, const ir::Attributes& attributes) {
  Outcome window = run(ops::op("first_window"), {of.expert, of.slot, of.filled}, attributes);
  CHECK(window.faults.empty());
  return window;
}

// The windows that a decision needs, one of `shards`.
std::int32_t windows_needed(const Decision& of, const ir::Attributes& attributes, std::int64_t shards) {
  return *first_window(of, share_in_space(ops::op("first_window"), attributes, shards)).results[2].as<std::int32_t>();
}

// The first window and those of the further rounds, which a group of shards runs as often as its fullest one needs.
HeldChoices held_in(const Decision& of, const ir::Attributes& attributes, std::int64_t shards, std::int32_t rounds) {
  const ops::OpDef &first_op = ops::op("first_window"), &next_op = ops::op("window");
  const ir::Attributes share = share_in_space(first_op, attributes, shards);
  const std::int64_t capacity = share.integer("slots");
  HeldChoices held;
  const Outcome first = first_window(of, share);
  held.add_window(of.expert, first.results[0], first.results[1], capacity);
  for (std::int32_t n = 1; n < rounds; ++n) {
    GuardedTensor round({DType::i32, {1}});
    *round.as<std::int32_t>() = n;
    const Outcome next = run(next_op, {of.slot, of.filled, round}, share_in_space(next_op, attributes, shards));
    CHECK(next.faults.empty());
    held.add_window(of.expert, next.results[0], next.results[1], capacity);
  }
  return held;
}

}  // namespace

TEST_CASE("the windows of all shards hold in all rounds what those of the whole hold, each choice once") {
  const std::int64_t choices = GENERATE(1, 2), shards = GENERATE(2, 4), slots = GENERATE(4, 12, 96);
  INFO(choices << " choices, " << shards << " shards, windows of " << slots << " slots");
  const ops::Sample sample{{{{DType::i32, {48, choices}}, ops::Fill::expert}, {{DType::i32, {4, 2}}, ops::Fill::rows}},
                           {{"capacity", 48}, {"groups", 4}, {"experts", 4}}};
  const ir::Attributes attributes{{"slots", slots}};
  const SampleRoute route(sample, 23);
  const Decision whole = route.whole();
  const std::int32_t of_whole = windows_needed(whole, attributes, 1);
  CHECK((of_whole > 1) == (slots < 48));
  const HeldChoices expected = held_in(whole, attributes, 1, of_whole);
  CHECK(expected.windows == std::vector<std::int32_t>(std::size_t(48 * choices), 1));

  std::vector<Decision> parts;
  std::int32_t rounds = 1;
  for (std::int64_t place = 0; place < shards; ++place) {
    parts.push_back(route.shard(place, shards));
    rounds = std::max(rounds, windows_needed(parts.back(), attributes, shards));
  }
  CHECK(rounds >= of_whole);  // the fullest shard has at least its share of the fullest expert's choices
  HeldChoices found;
  for (const Decision& part : parts) found.append(held_in(part, attributes, shards, rounds));
  CHECK(found.windows == expected.windows);
  CHECK(found.filled == expected.filled);
}
