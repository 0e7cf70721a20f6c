#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>
#include <vector>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"

namespace lancet::backend::cpu {
namespace {

TEST_CASE("buffers are aligned, and zero when requested") {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{5000}, std::size_t{3} << 20}) {
    const Buffer b = Buffer::zeroed(bytes);
    CHECK(b.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % (bytes >= (2u << 20) ? (2u << 20) : 64) == 0);
    std::size_t other = 0;
    for (std::byte x : b.span<std::byte>()) other += x != std::byte{0};
    CHECK(other == 0);
  }
  CHECK(Buffer::raw(0).data() == nullptr);
  CHECK(Buffer::zeroed(0).size() == 0);
}

TEST_CASE("a buffer can be moved") {
  Buffer a = Buffer::zeroed(256);
  void* const data = a.data();
  Buffer b = std::move(a);
  CHECK(b.data() == data);
  a = std::move(b);
  CHECK(a.data() == data);
  CHECK(a.size() == 256);
}

TEST_CASE("parallel_for covers every index once, in ranges of whole grains") {
  for (int count : {1, 2, 3, 7})
    for (std::int64_t n : {0, 1, 5, 64, 1000})
      for (std::int64_t grain : {1, 7, 64, 5000}) {
        set_threads(count);
        CHECK(threads() == count);
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
        std::atomic<int> calls = 0, ragged = 0;
        parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          ++calls;
          if (begin % grain != 0 || (end % grain != 0 && end != n)) ++ragged;
          for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
        });
        std::int64_t wrong = 0;
        for (const auto& x : seen) wrong += x != 1;
        INFO("threads " << count << " n " << n << " grain " << grain);
        CHECK(wrong == 0);
        CHECK(ragged == 0);
        CHECK(calls <= count);
        if (n > 0 && n <= grain) CHECK(calls == 1);
        if (n == 0) CHECK(calls == 0);
      }
}

TEST_CASE("every host thread has its own number of threads, and several run parallel_for at once") {
  std::vector<std::thread> ranks;
  std::vector<std::int64_t> sums(4);
  std::vector<int> counts(4);
  for (int r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      set_threads(r + 1);
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::atomic<std::int64_t> sum = 0;
        parallel_for(1000, 1, [&](std::int64_t begin, std::int64_t end) {
          std::int64_t mine = 0;
          for (std::int64_t i = begin; i < end; ++i) mine += i;
          sum += mine;
        });
        sums[std::size_t(r)] += sum;
      }
      counts[std::size_t(r)] = threads();
    });
  for (std::thread& t : ranks) t.join();
  for (int r = 0; r < 4; ++r) {
    CHECK(sums[std::size_t(r)] == 50 * 499500);
    CHECK(counts[std::size_t(r)] == r + 1);
  }
}

TEST_CASE("a parallel region inside another runs inline") {
  set_threads(2);
  std::atomic<int> calls = 0;
  parallel_for(2, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) parallel_for(100, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  });
  CHECK(calls == 2);
  CHECK_THROWS_AS(set_threads(0), InternalError);
}

}  // namespace
}  // namespace lancet::backend::cpu
