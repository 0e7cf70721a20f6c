// The text form of the table of chosen matrix product algorithms.
#include "lancet/backend/cuda/matmul_choices.h"

#include <catch2/catch.hpp>

using namespace lancet;
using namespace lancet::backend::cuda;

TEST_CASE("choices survive a round trip through text") {
  const MatmulAlgorithm algorithm{1, 0xfedcba9876543210, 0, 4, 5, 6, 7, ~std::uint64_t{0}};
  keep_matmul_choice("bf16[8,16] = ... on a GPU, aligned to 256", algorithm);
  const std::string text = matmul_choices();
  CHECK(
      text ==
      "bf16[8,16] = ... on a GPU, aligned to 256 = 0000000000000001 fedcba9876543210 0000000000000000 0000000000000004 "
      "0000000000000005 0000000000000006 0000000000000007 ffffffffffffffff\n");
  keep_matmul_choice("bf16[8,16] = ... on a GPU, aligned to 256", MatmulAlgorithm{});
  REQUIRE(add_matmul_choices("\n" + text).ok());
  CHECK(find_matmul_choice("bf16[8,16] = ... on a GPU, aligned to 256") == algorithm);
  CHECK_FALSE(find_matmul_choice("bf16[8,16] = ... on another").has_value());
}

TEST_CASE("an invalid line is refused, and no choice of its text is kept") {
  const std::string good =
      "kept = 1111111111111111 2222222222222222 3333333333333333 4444444444444444 "
      "5555555555555555 6666666666666666 7777777777777777 8888888888888888\n";
  for (const std::string bad : {"a line", " = ", "x = 1 2 3", "x = 1111111111111111 2222222222222222",
                                "x = 111111111111111g 2222222222222222 3333333333333333 4444444444444444 "
                                "5555555555555555 6666666666666666 7777777777777777 8888888888888888",
                                " = 1111111111111111 2222222222222222 3333333333333333 4444444444444444 "
                                "5555555555555555 6666666666666666 7777777777777777 8888888888888888"}) {
    const Status status = add_matmul_choices(good + bad);
    INFO(bad);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ExitCode::config);
    CHECK_THAT(status.error().message, Catch::Matchers::Contains("line 2: expected"));
    CHECK_FALSE(find_matmul_choice("kept").has_value());
  }
}
