// The emulation of blocks and threads itself: collectives have the bits of a tree, and faults of a GPU program are
// noticed.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "emulated_ranks.h"
#include "ops/device/launch.h"

using namespace lancet;
using namespace lancet::ops::device;

namespace {

test::HostStream stream;

struct Collectives {
  static constexpr int threads = 96;
  const float* in;  // [threads]
  float *sums, *maxima;
  int *before, *totals;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const int l = block.thread();
    for (int repeat = 0; repeat < 3; ++repeat) sums[l] = block.sum(in[l]);
    maxima[l] = block.max(in[l]);
    before[l] = block.exclusive_scan(l % 5, totals[l]);
  }
};

struct Reverse {
  static constexpr int threads = 64;
  struct Shared {
    int values[threads];
  };
  int* out;
  bool barrier;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    shared.values[block.thread()] = block.thread();
    if (barrier) block.sync();
    out[block.thread()] = shared.values[threads - 1 - block.thread()];
  }
};

struct LoneBarrier {
  static constexpr int threads = 32;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if (block.thread() < 31) block.sync();
  }
};

struct Overrun {
  static constexpr int threads = 32;
  struct Shared {
    int values[threads];
  };
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    block.template shared<Shared>().values[block.thread() + 1] = 0;
  }
};

// All blocks of a launch meet: each counts itself and waits for the others. Then each adds up what all have written.
struct MeetingOfBlocks {
  static constexpr int threads = 64;
  std::uint32_t* count;
  int *values, *sums;
  bool data_first = true;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const bool first = block.thread() == 0;
    if (first && data_first) values[block.index()] = int(block.index()) + 1;
    if (first) block.add_word(count, 1);
    if (first && !data_first) values[block.index()] = int(block.index()) + 1;
    block.wait_word(count, std::uint32_t(block.count()), nullptr);
    if (!first) return;
    for (int b = 0; b < block.count(); ++b) sums[block.index()] += values[b];
  }
};

// Pairs of blocks that wait for each other.
template <int Cluster>
struct Pairs {
  static constexpr int threads = 32;
  static constexpr int cluster = Cluster;
  std::uint32_t* words;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if (block.thread() == 0) block.set_word(words + block.index(), 1);
    block.wait_word(words + (block.index() ^ 1), 1, nullptr);
  }
};

// Each block writes a piece into the window of every rank, counts it there, and waits for the pieces of all.
struct Pieces {
  static constexpr int threads = 32;
  static constexpr int per_block = 3;
  comm::Window window;
  int* pieces;  // [ranks, blocks, per_block], in the window
  int* sums;    // [blocks]
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const comm::Peers& peers = window.peers;
    const auto mine = (peers.rank * block.count() + block.index()) * per_block;
    if (block.thread() < peers.ranks) {
      for (int i = 0; i < per_block; ++i) peers.at(pieces, block.thread())[mine + i] = int(mine) + i;
      block.add_word(window.signals.word(peers, block.thread(), 0), 1);
    }
    const auto all = std::uint32_t(peers.ranks * block.count());
    if (!block.wait_word(window.signals.word(0), all, peers.stop)) return;
    if (block.thread() == 0)
      for (std::uint32_t i = 0; i < all * per_block; ++i) sums[block.index()] += pieces[i];
  }
};

// Runs MeetingOfBlocks with this many places and returns the sums.
std::vector<int> meet(int blocks, int places, bool data_first = true) {
  std::uint32_t count = 0;
  std::vector<int> values(std::size_t(blocks), 0), sums(std::size_t(blocks), 0);
  emulated::Ranks ranks(1, places);
  test::RankStream on(ranks.queue(0));
  ranks.name_words(0, {&count, 1});
  REQUIRE(launch(on, blocks, MeetingOfBlocks{&count, values.data(), sums.data(), data_first}).ok());
  ranks.run();
  return sums;
}

}  // namespace

TEST_CASE("collectives of a block") {
  std::vector<float> in(96), sums(96), maxima(96);
  std::vector<int> before(96), totals(96);
  for (std::size_t i = 0; i < 96; ++i) in[i] = float(i * 37 % 96) / 7.f;
  REQUIRE(launch(stream, 2, Collectives{in.data(), sums.data(), maxima.data(), before.data(), totals.data()}).ok());
  // Joined over 16, 8, ... threads of a warp, then over the warps in the same way.
  std::vector<float> warps(32, 0.f);
  for (std::size_t w = 0; w < 3; ++w) {
    std::vector<float> t(in.begin() + std::ptrdiff_t(32 * w), in.begin() + std::ptrdiff_t(32 * w + 32));
    for (std::size_t d = 16; d; d /= 2)
      for (std::size_t i = 0; i < d; ++i) t[i] += t[i + d];
    warps[w] = t[0];
  }
  const float expected = (warps[0] + warps[2]) + warps[1];
  int running = 0;
  for (std::size_t i = 0; i < 96; ++i) {
    CHECK(sums[i] == expected);
    CHECK(maxima[i] == 95.f / 7.f);
    CHECK(before[i] == running);
    CHECK(totals[i] == 190);
    running += int(i) % 5;
  }
}

TEST_CASE("a missing barrier is a wrong result") {
  std::vector<int> out(64);
  REQUIRE(launch(stream, 1, Reverse{out.data(), true}).ok());
  for (int i = 0; i < 64; ++i) CHECK(out[std::size_t(i)] == 63 - i);
  REQUIRE(launch(stream, 1, Reverse{out.data(), false}).ok());
  int wrong = 0;
  for (int i = 0; i < 64; ++i) wrong += out[std::size_t(i)] != 63 - i;
  CHECK(wrong > 8);
}

TEST_CASE("threads that wait for ever and accesses beyond a block's memory are noticed") {
  CHECK_THROWS_WITH((void)launch(stream, 1, LoneBarrier{}), Catch::Matchers::Contains("that others never reach"));
  CHECK_THROWS_WITH((void)launch(stream, 1, Overrun{}), Catch::Matchers::Contains("beyond its shared memory"));
  CHECK_THROWS_WITH((void)launch(stream, 1, Overrun{}, 300 * 1024), Catch::Matchers::Contains("shared memory"));
  CHECK(launch(stream, 0, LoneBarrier{}).ok());  // nothing to run
}

TEST_CASE("blocks that wait for each other meet if all have a place, and are noticed if not") {
  for (std::uint64_t order = 1; order <= 5; ++order) {
    emulated::order_seed = order;
    CHECK(meet(4, 4) == std::vector<int>(4, 10));
    CHECK_THROWS_WITH(meet(4, 3),
                      Catch::Matchers::Contains("all fibers wait: ") &&
                          Catch::Matchers::Contains("of rank 0 for word 0 of rank 0 to reach 4, which is 3") &&
                          Catch::Matchers::Contains("1 blocks of rank 0 for a place"));
  }
}

TEST_CASE("a word that is written before the data that it announces is a wrong result") {
  int wrong = 0;
  for (std::uint64_t order = 1; order <= 5; ++order) {
    emulated::order_seed = order;
    wrong += meet(4, 4, false) != std::vector<int>(4, 10);
  }
  CHECK(wrong > 0);
}

TEST_CASE("blocks of a cluster begin together") {
  int stuck = 0;
  for (std::uint64_t order = 1; order <= 5; ++order) {
    emulated::order_seed = order;
    for (const bool clusters : {true, false}) {
      std::vector<std::uint32_t> words(8, 0);
      emulated::Ranks ranks(1, 2);
      test::RankStream on(ranks.queue(0));
      REQUIRE((clusters ? launch(on, 8, Pairs<2>{words.data()}) : launch(on, 8, Pairs<1>{words.data()})).ok());
      if (clusters) {
        ranks.run();
        CHECK(words == std::vector<std::uint32_t>(8, 1));
      } else {
        try {
          ranks.run();
        } catch (const InternalError&) {
          ++stuck;
        }
      }
    }
  }
  CHECK(stuck > 2);
  std::vector<std::uint32_t> words(8, 0);
  const Status odd = launch(stream, 7, Pairs<2>{words.data()});
  REQUIRE_FALSE(odd.ok());
  CHECK(odd.error().message == "a launch of 7 blocks in clusters of 2");
  emulated::Ranks small(1, 1);
  test::RankStream on(small.queue(0));
  CHECK_THROWS_WITH((void)launch(on, 8, Pairs<2>{words.data()}),
                    Catch::Matchers::Contains("a cluster of 2 blocks, 1 fit"));
}

TEST_CASE("blocks of several ranks wait for pieces of each other") {
  constexpr int ranks = 3, blocks = 4, values = ranks * blocks * Pieces::per_block;
  struct Memory {
    int pieces[values] = {};
    std::uint32_t arrived = 0;
  };
  for (std::uint64_t order = 1; order <= 5; ++order) {
    emulated::order_seed = order;
    std::vector<Memory> memory(ranks);
    std::vector<std::byte*> starts;
    for (Memory& of : memory) starts.push_back(reinterpret_cast<std::byte*>(&of));
    test::HostWindows windows(starts, offsetof(Memory, arrived), blocks);
    emulated::Ranks machine(ranks, blocks);
    std::vector<std::vector<int>> sums(ranks, std::vector<int>(blocks, 0));
    for (int r = 0; r < ranks; ++r) {
      test::RankStream on(machine.queue(r));
      REQUIRE(launch(on, blocks, Pieces{windows.of(r, 1), memory[std::size_t(r)].pieces, sums[std::size_t(r)].data()})
                  .ok());
    }
    machine.run();
    for (const auto& of : sums) CHECK(of == std::vector<int>(blocks, values * (values - 1) / 2));
  }
}
