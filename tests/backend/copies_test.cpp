// Lists of copies, and the kernel that makes them, run on the host.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "backend/cuda/copy_table.h"
#include "lancet/backend/device.h"

namespace lancet::backend {
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
