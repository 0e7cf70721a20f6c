#include "lancet/base/rounding.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace lancet {

TEST_CASE("the mean of many stochastic roundings is the unrounded number") {
  for (const float x : {1.F + 0x1p-10F, -3.14159F, 1e-3F, 0x1p-120F * 1.3F}) {
    double sum = 0;
    constexpr int count = 1 << 16;
    const float step = std::ldexp(1.F, std::ilogb(x) - 7);
    for (int i = 0; i < count; ++i) {
      const float rounded = to_f32(round_stochastically(x, RoundingBits(3, 1)(i)));
      REQUIRE(std::abs(rounded - x) < step);
      sum += (double(rounded) - x) / step;
    }
    INFO("x " << x);
    CHECK(std::abs(sum / count) < 4 * 0.5 / std::sqrt(double(count)));  // at most four standard deviations
  }
}

TEST_CASE("values that bf16 represents exactly, infinities and NaN are not rounded") {
  for (const float x : {0.F, -0.F, 1.F, -2.5F, std::numeric_limits<float>::infinity()})
    for (const std::uint32_t bits : {0u, 0xffffffffu}) CHECK(to_f32(round_stochastically(x, bits)) == x);
  CHECK(std::isnan(to_f32(round_stochastically(std::nanf(""), 0xffffffffu))));
}

TEST_CASE("rounding bits differ by tensor, step and element") {
  int equal = 0, ones = 0;
  for (int i = 0; i < 4096; ++i) {
    equal += RoundingBits(1, 5)(i) == RoundingBits(2, 5)(i);
    equal += RoundingBits(1, 5)(i) == RoundingBits(1, 6)(i);
    equal += RoundingBits(1, 5)(i) == RoundingBits(1, 5)(i + 1);
    ones += __builtin_popcount(RoundingBits(1, 5)(i) >> 16);
  }
  CHECK(equal == 0);
  CHECK(std::abs(ones - 4096 * 8) < 4 * 128);  // half of 65,536 bits; a standard deviation is 128
}

}  // namespace lancet
