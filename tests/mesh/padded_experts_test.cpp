// The padded numbers of experts that ranks have in unlike numbers.
#include "lancet/mesh/padded_experts.h"

#include <catch2/catch.hpp>

using lancet::mesh::PaddedExperts;

TEST_CASE("padded numbers leave room on each rank for the most experts of a rank") {
  const PaddedExperts experts({3, 1, 2});
  CHECK(experts.pads());
  CHECK(experts.on_rank() == 3);
  CHECK(experts.padded(6) == 9);
  const std::vector<std::optional<std::int64_t>> at{0, 1, 2, 3, {}, {}, 4, 5, {}};
  for (std::int64_t number = 0; number < 9; ++number) {
    CHECK(experts.expert(number) == at[std::size_t(number)]);
    if (at[std::size_t(number)]) CHECK(experts.padded_number(*at[std::size_t(number)]) == number);
  }
}

TEST_CASE("experts of which each rank has as many have no padding") {
  for (const PaddedExperts& experts : {PaddedExperts(), PaddedExperts({2, 2, 2}), PaddedExperts({6})}) {
    CHECK_FALSE(experts.pads());
    CHECK(experts == PaddedExperts());
    CHECK(experts.padded(6) == 6);
    CHECK(experts.padded_number(5) == 5);
    CHECK(experts.expert(5) == 5);
  }
}

TEST_CASE("the text of padded experts is their counts") {
  const PaddedExperts experts({6, 2, 10});
  CHECK(to_string(experts) == "6,2,10");
  CHECK(lancet::mesh::parse_padded_experts("6,2,10") == experts);
  for (const char* text : {"", "6", "2,2", "6,0", "6,-1", "6,,2", "6,2,", ",6,2", "6, 2", "06,2", "6,2x", "x"}) {
    INFO(text);
    CHECK_FALSE(lancet::mesh::parse_padded_experts(text));
  }
}
