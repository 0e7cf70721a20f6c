// The emulation of blocks and threads itself: collectives have the bits of a tree, and faults of a GPU program are
// noticed.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "emulated_kernels.h"
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
