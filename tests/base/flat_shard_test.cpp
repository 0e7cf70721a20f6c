#include "lancet/base/flat_shard.h"

#include <catch2/catch.hpp>

using namespace lancet;

TEST_CASE("flat shards cover every element once, in order, in whole cache lines") {
  for (const std::int64_t n : {1, 15, 16, 17, 100, 768, 4096, 1'000'003})
    for (const std::int64_t ranks : {1, 2, 3, 4, 7, 64}) {
      const std::int64_t s = flat_shard_elements(n, ranks);
      INFO(n << " elements, " << ranks << " ranks, shards of " << s);
      CHECK(s % flat_shard_step == 0);
      CHECK(s * ranks >= n);
      CHECK((s - flat_shard_step) * ranks < n);  // no shorter one would do
      std::int64_t next = 0;
      for (std::int64_t place = 0; place < ranks; ++place) {
        const FlatRange range = flat_range(n, ranks, place);
        CHECK(range.begin == next);
        CHECK(range.size() <= s);
        next = range.end;
      }
      CHECK(next == n);
    }
}

TEST_CASE("flat shards of small tensors may be all padding") {
  CHECK(flat_shard_elements(20, 4) == 16);
  CHECK(flat_range(20, 4, 0) == FlatRange{0, 16});
  CHECK(flat_range(20, 4, 1) == FlatRange{16, 20});
  CHECK(flat_range(20, 4, 2) == FlatRange{20, 20});
  CHECK(flat_shard_elements(768, 4) == 192);
}
