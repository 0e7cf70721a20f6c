#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>
#include <vector>

#include "backend/cuda/copy_table.h"
#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/backend/device.h"
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

namespace lancet::backend {

// Lists of copies, and the kernel that makes them, run on the host.

namespace {

TEST_CASE("copies whose sources and targets both continue the last ones are joined") {
  std::byte from[100], to[100];
  std::vector<Copy> copies;
  append_copy(copies, {to, from, 8});
  append_copy(copies, {to + 8, from + 8, 0});
  append_copy(copies, {to + 8, from + 8, 4});
  append_copy(copies, {to + 12, from + 20, 4});  // the source has a gap
  append_copy(copies, {to + 40, from + 24, 4});  // the target has a gap
  append_copy(copies, {to + 44, from + 28, 16});
  REQUIRE(copies.size() == 3);
  CHECK((copies[0].to == to && copies[0].from == from && copies[0].bytes == 12));
  CHECK((copies[1].to == to + 12 && copies[1].from == from + 20 && copies[1].bytes == 4));
  CHECK((copies[2].to == to + 40 && copies[2].from == from + 24 && copies[2].bytes == 20));
}

TEST_CASE("the threads of a launch move every byte of a copy and no other, at any alignment") {
  struct alignas(16) Memory {
    std::byte bytes[4096];
  };
  for (const std::size_t offset_from : {0, 4, 6, 16})
    for (const std::size_t offset_to : {0, 12, 1})
      for (const std::size_t bytes : {0, 2, 4, 160, 1003, 3072})
        for (const std::size_t threads : {1, 32, 96}) {
          Memory from, to, expected;
          for (std::size_t i = 0; i < sizeof from.bytes; ++i) from.bytes[i] = std::byte(i * 7 % 251 + 1);
          std::fill_n(to.bytes, sizeof to.bytes, std::byte{0});
          expected = to;
          std::copy_n(from.bytes + offset_from, bytes, expected.bytes + offset_to);
          cuda::CopyTable table{};
          table.copies[3] = {to.bytes + offset_to, from.bytes + offset_from, bytes};
          for (std::size_t thread = 0; thread < threads; ++thread) table.run(3, thread, threads);
          INFO("from " << offset_from << " to " << offset_to << ", " << bytes << " bytes, " << threads << " threads");
          CHECK(std::equal(to.bytes, to.bytes + sizeof to.bytes, expected.bytes));
        }
}

}  // namespace

}  // namespace lancet::backend
