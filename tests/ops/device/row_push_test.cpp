// All-to-alls of rows straight into the peers' memory, with the memory of several ranks side by side on the host,
// compared with the CPU's all-to-alls between ranks that are threads: the same bytes for any counts.
#include "lancet/comm/row_push.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "lancet/comm/launch.h"
#include "lancet/ir/route_layout.h"
#include "lancet/ops/kernel.h"
#include "push_rows.h"

using namespace lancet;

namespace {

constexpr std::int64_t capacity = 6, tokens = 12;

struct Case {
  int ranks;
  std::int64_t local;  // experts of a rank
  DType dtype;
  std::int64_t width;
  int parts;
};

// Every tensor at the same offset on all ranks: slots, buffer, and for each part a route and rows.
struct Arena {
  explicit Arena(const Case& c) : ranks(c.ranks), local(c.local) {
    const auto& [_, __, dtype, width, parts] = c;
    types = {{dtype, {ranks * local, capacity, width}}, {dtype, {local, ranks * capacity, width}}};
    for (int p = 0; p < parts; ++p) {
      types.push_back({DType::route, {tokens, ranks * local}});
      types.push_back({DType::i32, {local, ranks + 1}});
    }
    for (const ir::TensorType& type : types) {
      offsets.push_back(bytes.size() * 16);
      bytes.resize(bytes.size() + std::size_t(ir::bytes(type)) / 16 + 2, {0x5a5a5a5a5a5a5a5a, 0x5a5a5a5a5a5a5a5a});
    }
  }
  std::byte* start() { return reinterpret_cast<std::byte*>(bytes.data()); }
  ops::TensorView view(std::size_t i) { return {start() + offsets[i], types[i]}; }
  ir::RouteLayout layout() const { return {tokens, ranks * local}; }
  std::int32_t* begin(int part) { return layout().begin(view(std::size_t(2 + 2 * part)).data); }
  std::int32_t* end(int part) { return layout().end(view(std::size_t(2 + 2 * part)).data); }
  std::int32_t* rows(int part) { return view(std::size_t(3 + 2 * part)).as<std::int32_t>(); }

  struct alignas(16) Unit {
    std::uint64_t words[2];
    bool operator==(const Unit&) const = default;
  };
  std::int64_t ranks, local;
  std::vector<ir::TensorType> types;
  std::vector<std::size_t> offsets;
  std::vector<Unit> bytes;
};

// Filled slots and matching counts: the parts own consecutive ranges of each expert's slots.
std::vector<Arena> make_ranks(const Case& c, unsigned seed) {
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
        arena.begin(p)[e] = at;
        if (r != 1 || e != 0) at += std::int32_t(random() % (std::uint64_t(capacity - at) + 1));  // rank 1 sends none
        arena.end(p)[e] = at;
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
          at += source.end(p)[global] - source.begin(p)[global];
        }
        row[ranks] = at;
      }
    }
  return all;
}

struct Peers {
  std::vector<std::byte*> starts;
  int rank;
  void* at(const void* here, int peer) const {
    return starts[std::size_t(peer)] + (static_cast<const std::byte*>(here) - starts[std::size_t(rank)]);
  }
};

// All ranks, between two barriers: blocks with this many threads, in an arbitrary order.
void push(std::vector<Arena>& all, bool there, int parts, int block_count, int threads) {
  std::vector<std::byte*> starts;
  for (Arena& arena : all) starts.push_back(arena.start());
  std::mt19937 random(1);
  for (int rank = 0; rank < int(all.size()); ++rank) {
    Arena& arena = all[std::size_t(rank)];
    const ops::TensorView slots = arena.view(0), buffer = arena.view(1);
    comm::RowPush push{.there = there,
                               .slots = slots.as<std::byte>(),
                               .buffer = buffer.as<std::byte>(),
                               .experts = slots.shape()[0],
                               .ranks = arena.ranks,
                               .capacity = slots.shape()[1],
                               .buffer_rows = buffer.shape()[1],
                               .row_bytes = slots.shape()[2] * size_of(slots.dtype()),
                               .parts = parts,
                               .part = {}};
    for (int p = 0; p < parts; ++p) push.part[p] = {arena.begin(p), arena.end(p), arena.rows(p)};
    const comm::PushRows<Peers> kernel{push, {starts, rank}, rank};
    std::vector<int> blocks(static_cast<std::size_t>(block_count));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (int block : blocks) test::push_rows(kernel, block, block_count, threads);
  }
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
    args.comm = &world;
    return ops::find_cpu_kernel(op)->bind(args)();
  });
  if (!status.ok()) FAIL(status.error().message);
}

void check(const Case& c, int blocks, int threads) {
  INFO(c.ranks << " ranks of " << c.local << " experts, rows of " << c.width << " " << name(c.dtype) << ", " << c.parts
               << " parts, " << blocks << " blocks of " << threads);
  for (unsigned seed : {1u, 2u, 3u}) {
    const std::vector<Arena> start = make_ranks(c, seed);
    std::vector<Arena> expected = start, found = start;
    push_all(expected, true, c.parts);
    push(found, true, c.parts, blocks, threads);
    bool moved = false;
    for (std::size_t r = 0; r < start.size(); ++r) {
      REQUIRE(found[r].bytes == expected[r].bytes);
      moved = moved || found[r].bytes != start[r].bytes;
    }
    CHECK(moved);
    for (auto* all : {&expected, &found})
      for (Arena& arena : *all) std::memset(arena.start(), 0x77, std::size_t(ir::bytes(arena.types[0])));
    push_all(expected, false, c.parts);
    push(found, false, c.parts, blocks, threads);
    for (std::size_t r = 0; r < start.size(); ++r) REQUIRE(found[r].bytes == expected[r].bytes);
  }
}

}  // namespace

TEST_CASE("rows pushed to the peers equal those of messages, to the bit") {
  for (int ranks : {1, 2, 4, 8})
    for (int parts : {1, 2, 3}) {
      check({ranks, 2, DType::f32, 12, parts}, 3, 13);
      check({ranks, 2, DType::bf16, 8, parts}, 3, 13);
      check({ranks, 2, DType::bf16, 5, parts}, 3, 13);  // rows that are not multiples of 16 bytes
    }
}

TEST_CASE("the rows do not depend on the number of blocks and threads") {
  for (int ranks : {1, 2, 4, 8})
    for (int blocks : {1, 2, 7, 16})
      for (int threads : {1, 32}) check({ranks, 3, DType::bf16, 40, 2}, blocks, threads);
}

TEST_CASE("more ranges than a block finds in one turn") {
  check({2, 100, DType::bf16, 4, 3}, 5, 64);  // 600 ranges
}

namespace {

// Records the ranks whose memory a block requests, in order.
struct Watched {
  std::vector<int>* asked;
  Peers peers;
  void* at(const void* here, int peer) const {
    asked->push_back(peer);
    return peers.at(here, peer);
  }
};

}  // namespace

TEST_CASE("each block and each rank starts with another peer") {
  const Case c{4, 2, DType::f32, 4, 1};
  std::vector<Arena> all = make_ranks(c, 1);
  std::vector<std::byte*> starts;
  for (Arena& arena : all) starts.push_back(arena.start());
  for (int rank = 0; rank < 4; ++rank)
    for (int block = 0; block < 4; ++block) {
      Arena& arena = all[std::size_t(rank)];
      const comm::RowPush push{.there = true,
                                       .slots = arena.view(0).as<std::byte>(),
                                       .buffer = arena.view(1).as<std::byte>(),
                                       .experts = 8,
                                       .ranks = 4,
                                       .capacity = capacity,
                                       .buffer_rows = 4 * capacity,
                                       .row_bytes = 16,
                                       .parts = 1,
                                       .part = {{arena.begin(0), arena.end(0), arena.rows(0)}}};
      std::vector<int> asked;
      test::push_rows(comm::PushRows<Watched>{push, {&asked, {starts, rank}}, rank}, block, 4, 1);
      REQUIRE(asked.size() == 16);
      // The offsets of the rows first, then the rows themselves: two experts of each peer.
      for (std::size_t i = 0; i < 8; ++i) {
        const int peer = (rank + 1 + block + int(i) / 2) % 4;
        CHECK(asked[i] == peer);
        CHECK(asked[8 + i] == peer);
      }
    }
}
