// All-to-alls of rows straight into the peers' memory: the kernels of all ranks run together on the host, in many
// orders, and are compared with the CPU's all-to-alls between ranks that are threads: the same bytes for any counts.
#include "ops/comm/all_to_all/push_rows.h"
#include "doubles/inproc.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "emulated_ranks.h"
#include "lancet/comm/mpi.h"
#include "lancet/ops/kernel.h"

using namespace lancet;
namespace device = ops::device;
namespace emulated = ops::device::emulated;

namespace {

constexpr std::int64_t capacity = 6;
constexpr int most_blocks = 8;

struct PushCase {
  int ranks;
  std::int64_t local;  // experts of a rank
  DType dtype;
  std::int64_t width;
  int parts;
};

// Every tensor at the same offset on all ranks: slots, buffer, and for each part filled slots and rows. The signals
// follow.
struct Arena {
  explicit Arena(const PushCase& c) : ranks(c.ranks), local(c.local) {
    const auto& [_, __, dtype, width, parts] = c;
    types = {{dtype, {ranks * local, capacity, width}}, {dtype, {local, ranks * capacity, width}}};
    for (int p = 0; p < parts; ++p) {
      types.push_back({DType::i32, {ranks * local, 2}});
      types.push_back({DType::i32, {local, ranks + 1}});
    }
    for (const ir::TensorType& type : types) {
      offsets.push_back(bytes.size() * 16);
      bytes.resize(bytes.size() + std::size_t(ir::bytes(type)) / 16 + 2, {0x5a5a5a5a5a5a5a5a, 0x5a5a5a5a5a5a5a5a});
    }
    signals = bytes.size() * 16;
    bytes.resize(bytes.size() + std::size_t(most_blocks * ranks) / 4 + 1, {0, 0});
  }
  void clear_signals() { std::memset(start() + signals, 0, bytes.size() * 16 - signals); }
  std::byte* start() { return reinterpret_cast<std::byte*>(bytes.data()); }
  ops::TensorView view(std::size_t i) { return {start() + offsets[i], types[i]}; }
  std::int32_t* filled(int part) { return view(std::size_t(2 + 2 * part)).as<std::int32_t>(); }
  std::int32_t* rows(int part) { return view(std::size_t(3 + 2 * part)).as<std::int32_t>(); }

  struct alignas(16) Unit {
    std::uint64_t words[2];
    bool operator==(const Unit&) const = default;
  };
  std::int64_t ranks, local;
  std::vector<ir::TensorType> types;
  std::vector<std::size_t> offsets;
  std::size_t signals;  // offset
  std::vector<Unit> bytes;
};

// Filled slots and matching counts: the parts own consecutive ranges of each expert's slots.
std::vector<Arena> make_ranks(const PushCase& c, unsigned seed) {
  const int ranks = c.ranks, parts = c.parts;
  const std::int64_t local = c.local;
  std::mt19937 random(seed);
  std::vector<Arena> all;
  for (int r = 0; r < ranks; ++r) {
    Arena& arena = all.emplace_back(c);
    auto* slots = arena.view(0).as<std::uint8_t>();
    for (std::int64_t i = 0; i < ir::bytes(arena.types[0]); ++i) slots[i] = std::uint8_t(random());
    for (std::int64_t e = 0; e < ranks * local; ++e) {
      std::int32_t at = 0;
      for (int p = 0; p < parts; ++p) {
        arena.filled(p)[2 * e] = at;
        if (r != 1 || e != 0) at += std::int32_t(random() % (std::uint64_t(capacity - at) + 1));  // rank 1 sends none
        arena.filled(p)[2 * e + 1] = at;
      }
    }
  }
  for (int owner = 0; owner < ranks; ++owner)
    for (std::int64_t e = 0; e < local; ++e) {
      std::int32_t at = 0;
      for (int p = 0; p < parts; ++p) {
        std::int32_t* row = all[std::size_t(owner)].rows(p) + e * (ranks + 1);
        for (int s = 0; s < ranks; ++s) {
          Arena& source = all[std::size_t(s)];
          const std::int64_t global = owner * local + e;
          row[s] = at;
          at += source.filled(p)[2 * global + 1] - source.filled(p)[2 * global];
        }
        row[ranks] = at;
      }
    }
  return all;
}

device::RowPush row_push(Arena& arena, bool there, int parts) {
  const ops::TensorView slots = arena.view(0), buffer = arena.view(1);
  device::RowPush push{.there = there,
                       .slots = slots.as<std::byte>(),
                       .buffer = buffer.as<std::byte>(),
                       .experts = slots.shape()[0],
                       .ranks = arena.ranks,
                       .capacity = slots.shape()[1],
                       .buffer_rows = buffer.shape()[1],
                       .row_bytes = slots.shape()[2] * size_of(slots.dtype()),
                       .parts = parts,
                       .part = {}};
  for (int p = 0; p < parts; ++p) push.part[p] = {arena.filled(p), arena.rows(p)};
  return push;
}

// Launches of all ranks that run together.
class Machine {
 public:
  Machine(std::vector<Arena>& all, int blocks, int places, std::uint64_t order)
      : all_(all), windows_(starts(all), all.front().signals, blocks), blocks_(blocks), ranks_(with(order), places) {
    for (int r = 0; r < int(all.size()); ++r)
      ranks_.name_words(r, {windows_.signals(r), std::size_t(blocks) * all.size()});
  }
  template <class F>
  void launch(int rank, int blocks, const F& kernel) {
    test::RankStream stream(ranks_.queue(rank));
    REQUIRE(device::launch(stream, blocks, kernel).ok());
  }
  void push(int rank, bool there, int parts, std::uint32_t generation = 1) {
    launch(rank, blocks_,
           device::PushRows{row_push(all_[std::size_t(rank)], there, parts), windows_.of(rank, generation)});
  }
  void push_all(bool there, int parts, std::uint32_t generation = 1) {
    for (int r = 0; r < int(all_.size()); ++r) push(r, there, parts, generation);
  }
  void run() { ranks_.run(); }
  void clear_signals() {
    for (Arena& arena : all_) arena.clear_signals();
  }
  test::HostWindows& windows() { return windows_; }

 private:
  static std::vector<std::byte*> starts(std::vector<Arena>& all) {
    std::vector<std::byte*> found;
    for (Arena& arena : all) found.push_back(arena.start());
    return found;
  }
  int with(std::uint64_t order) {
    emulated::order_seed = order;
    return int(all_.size());
  }
  std::vector<Arena>& all_;
  test::HostWindows windows_;
  int blocks_;
  emulated::Ranks ranks_;
};

void push(std::vector<Arena>& all, bool there, int parts, int blocks, std::uint64_t order) {
  Machine machine(all, blocks, blocks, order);
  machine.push_all(there, parts);
  machine.run();
  machine.clear_signals();
}

// The same by the CPU's kernels.
void push_all(std::vector<Arena>& all, bool there, int parts) {
  const Status status = comm::run_inproc(int(all.size()), [&](comm::Communicator& world) -> Status {
    Arena& arena = all[std::size_t(world.rank())];
    const ir::Attributes attributes;
    const std::string op = there ? "all_to_all" : "all_to_all_back";
    ops::KernelArgs args{.op = op,
                         .operands = {arena.view(there ? 0 : 1)},
                         .results = {arena.view(there ? 1 : 0)},
                         .attributes = attributes};
    for (std::size_t i = 2; i < std::size_t(2 + 2 * parts); ++i) args.operands.push_back(arena.view(i));
    args.group = comm::group_of(world);
    return ops::find_cpu_kernel(op)->bind(args)();
  });
  if (!status.ok()) FAIL(status.error().message);
}

// Writes 0x77 over the slots, so that rows that come back are seen, after `turns` turns of the other ranks.
struct Clear {
  static constexpr int threads = 32;
  std::byte* slots;
  std::int64_t bytes;
  int turns;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    std::uint32_t turn = 0;
    for (int i = 0; i < turns; ++i) block.add_word(&turn, 1);
    for (std::int64_t i = block.thread(); i < bytes; i += threads) slots[i] = std::byte{0x77};
  }
};

// seed: of the rows, and of the order of the kernels.
void check(const PushCase& c, int blocks, unsigned seed) {
  INFO(c.ranks << " ranks of " << c.local << " experts, rows of " << c.width << " " << name(c.dtype) << ", " << c.parts
               << " parts, " << blocks << " blocks, seed " << seed);
  const std::vector<Arena> start = make_ranks(c, seed);
  std::vector<Arena> expected = start, found = start;
  push_all(expected, true, c.parts);
  push(found, true, c.parts, blocks, seed);
  bool moved = false;
  for (std::size_t r = 0; r < start.size(); ++r) {
    REQUIRE(found[r].bytes == expected[r].bytes);
    moved = moved || found[r].bytes != start[r].bytes;
  }
  CHECK(moved);
  for (auto* all : {&expected, &found})
    for (Arena& arena : *all) std::memset(arena.start(), 0x77, std::size_t(ir::bytes(arena.types[0])));
  push_all(expected, false, c.parts);
  push(found, false, c.parts, blocks, seed);
  for (std::size_t r = 0; r < start.size(); ++r) REQUIRE(found[r].bytes == expected[r].bytes);
}

// Stops the kernels of all ranks, as their hosts do.
struct Stop {
  static constexpr int threads = 32;
  std::uint32_t* stops;
  int ranks;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if (block.thread() < ranks) block.set_word(stops + block.thread(), 1);
  }
};

}  // namespace

TEST_CASE("rows pushed to the peers equal those of messages, to the bit") {
  unsigned seed = 0;
  for (int ranks : {1, 2, 4, 8})
    for (int parts : {1, 3}) {
      check({ranks, 2, DType::f32, 12, parts}, 2, ++seed);
      check({ranks, 2, DType::bf16, 5, parts}, 2, ++seed);  // rows that are not multiples of 16 bytes
    }
}

TEST_CASE("the rows do not depend on the number of blocks") {
  for (int ranks : {2, 4})
    for (int blocks : {1, 3, 8}) check({ranks, 3, DType::bf16, 40, 2}, blocks, 1);
}

TEST_CASE("more messages than a block finds in one turn") {
  check({2, 100, DType::bf16, 4, 3}, 2, 1);  // 600 messages
}

TEST_CASE("ranks that run ahead of each other push there and back without a host between") {
  const PushCase c{4, 2, DType::bf16, 8, 2};
  const std::vector<Arena> start = make_ranks(c, 1);
  std::vector<Arena> expected = start;
  push_all(expected, true, c.parts);
  for (Arena& arena : expected) std::memset(arena.start(), 0x77, std::size_t(ir::bytes(arena.types[0])));
  push_all(expected, false, c.parts);
  for (std::uint64_t order : {1u, 2u, 3u}) {
    INFO("order " << order);
    std::vector<Arena> found = start;
    Machine machine(found, 3, 3, order);
    machine.push_all(true, c.parts, 1);
    for (int r = 0; r < c.ranks; ++r) {
      Arena& arena = found[std::size_t(r)];
      machine.launch(r, 1, Clear{arena.start(), ir::bytes(arena.types[0]), 200 * r});
    }
    machine.push_all(false, c.parts, 2);
    machine.push_all(true, c.parts, 3);  // the same rows again
    machine.run();
    machine.clear_signals();
    for (std::size_t r = 0; r < start.size(); ++r) REQUIRE(found[r].bytes == expected[r].bytes);
  }
}

TEST_CASE("kernels whose peer never comes end when the hosts stop them, and touch no tensor") {
  const PushCase c{4, 2, DType::f32, 4, 1};
  const std::vector<Arena> start = make_ranks(c, 1);
  for (std::uint64_t order : {1u, 2u, 3u}) {
    std::vector<Arena> found = start;
    Machine machine(found, 2, 2, order);
    for (int r : {0, 1, 3}) machine.push(r, true, c.parts);
    machine.launch(2, 1, Stop{&machine.windows().stop(0), c.ranks});
    machine.push(2, true, c.parts);  // it comes after the stop
    machine.run();
    for (int r = 0; r < c.ranks; ++r) {
      CHECK(machine.windows().signals(r)[2] == 0);  // rank 2 writes nothing any more
      found[std::size_t(r)].clear_signals();
      CHECK((found[std::size_t(r)].bytes == start[std::size_t(r)].bytes));
    }
  }
}

TEST_CASE("a peer that never comes is noticed") {
  const PushCase c{4, 2, DType::f32, 4, 1};
  std::vector<Arena> all = make_ranks(c, 1);
  Machine machine(all, 2, 2, 1);
  for (int r : {0, 1, 3}) machine.push(r, true, c.parts);
  CHECK_THROWS_WITH(machine.run(), Catch::Matchers::StartsWith("all fibers wait: ") &&
                                       Catch::Matchers::Contains("block 0 of rank 0 for word 2 of rank 0 to reach 1, "
                                                                 "which is 0") &&
                                       Catch::Matchers::Contains("block 1 of rank 3 for word 6 of rank 3 to reach 1, "
                                                                 "which is 0"));
}

// Without places for all blocks, ranks may begin with different ones, and each waits for those of the others.
TEST_CASE("a push needs a place for all of its blocks") {
  const PushCase c{2, 2, DType::f32, 4, 1};
  int stuck = 0;
  for (std::uint64_t order = 1; order <= 8; ++order) {
    std::vector<Arena> all = make_ranks(c, 1);
    Machine machine(all, 4, 1, order);
    machine.push_all(true, c.parts);
    try {
      machine.run();
    } catch (const InternalError& error) {
      CHECK_THAT(error.what(), Catch::Matchers::Contains("blocks of rank 0 for a place"));
      ++stuck;
    }
  }
  CHECK(stuck > 4);
}

TEST_CASE("each block and each rank starts with another peer") {
  const PushCase c{4, 2, DType::f32, 4, 1};
  std::vector<Arena> all = make_ranks(c, 1);
  for (int rank = 0; rank < 4; ++rank) {
    const device::PushRows kernel{row_push(all[std::size_t(rank)], true, 1),
                                  {{nullptr, nullptr, rank, 4, nullptr}, {}, 4, 1}};
    for (int block = 0; block < 4; ++block)
      for (int i = 0; i < 8; ++i)
        CHECK(kernel.peer_of(i, block) == (rank + 1 + block + i / 2) % 4);  // two experts each
  }
}
