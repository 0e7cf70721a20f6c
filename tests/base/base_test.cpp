#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/base/hash.h"
#include "lancet/base/random.h"
#include "lancet/base/result.h"
#include "lancet/base/shape.h"
#include "lancet/base/shown.h"

namespace lancet {

TEST_CASE("a duration is printed in its two largest units") {
  CHECK(duration(-1) == "0s");
  CHECK(duration(59.4) == "59s");
  CHECK(duration(59.6) == "1m 00s");
  CHECK(duration(85) == "1m 25s");
  CHECK(duration(3599) == "59m 59s");
  CHECK(duration(3720) == "1h 02m");
}

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  // Random123's kat_vectors: counter and key of zeros, of ones, of the digits of pi.
  using Block = std::array<std::uint32_t, 4>;
  CHECK(Philox(0, 0).block(0) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint64_t ones = ~std::uint64_t{0};
  CHECK(Philox(ones, ones).block(ones) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox(0x299f31d0a4093822, 0x0370734413198a2e).block(0x85a308d3243f6a88) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("normal numbers have mean 0 and deviation 1, uniform ones are at least 0 and below 1") {
  const Philox random(7, 3);
  constexpr int n = 100000;
  double sum = 0, squares = 0, uniform = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i)), u = random.uniform(static_cast<std::uint64_t>(i));
    REQUIRE((u >= 0 && u < 1));
    sum += x;
    squares += x * x;
    uniform += u;
  }
  CHECK(std::abs(sum / n) < 5 / std::sqrt(double(n)));
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2.0 / n));
  CHECK(std::abs(uniform / n - 0.5) < 5 * std::sqrt(1.0 / 12 / n));
}

TEST_CASE("normal numbers are Box-Muller's of a block's words, one at a time and in bulk") {
  const Philox random(11, 5);
  const std::uint64_t far = (std::uint64_t{1} << 34) - 150;  // the block number crosses 32 bits
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4098}, far})
    for (const std::size_t count : {0, 1, 3, 255, 256, 1030}) {
      std::vector<float> values(count + 1, 77.f);
      random.normals(first, std::span(values).first(count));
      CHECK(values[count] == 77.f);
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t index = first + i;
        REQUIRE(values[i] == random.normal(index));
        const auto words = random.block(index / 4);
        const std::size_t pair = index % 4 / 2 * 2;
        const double u = (words[pair] / 2 + 0.5) / 2147483648.0, angle = words[pair + 1] * (2 * M_PI / 4294967296.0);
        const double radius = std::sqrt(-2 * std::log(u));
        REQUIRE(std::abs(values[i] - radius * (index % 2 ? std::sin(angle) : std::cos(angle))) < 4e-6);
      }
    }
}

TEST_CASE("numbers below a bound cover its whole range and never reach it") {
  const Philox random(1, 2);
  std::vector<int> seen(7);
  for (std::uint64_t i = 0; i < 7000; ++i) ++seen.at(random.below(i, 7));
  for (int count : seen) CHECK(std::abs(count - 1000) < 200);
  CHECK(random.below(0, 1) == 0);
}

TEST_CASE("streams with different names differ") {
  CHECK(stream_of("h.0.attn") != stream_of("h.1.attn"));
  CHECK(Philox(1, stream_of("a")).block(0) != Philox(1, stream_of("b")).block(0));
}

TEST_CASE("bf16 rounds to nearest even") {
  auto rounded = [](float x) { return to_f32(from_f32<bf16>(x)); };
  CHECK(rounded(1.f) == 1.f);
  CHECK(rounded(1.00390625f) == 1.f);        // 1 + 2^-8: a tie, rounded to the even 1
  CHECK(rounded(1.01171875f) == 1.015625f);  // 1 + 3 * 2^-8: a tie, rounded to the even 1 + 2 * 2^-7
  CHECK(rounded(-1.005f) == -1.0078125f);
  CHECK(std::isinf(rounded(std::numeric_limits<float>::infinity())));
  CHECK(std::isinf(rounded(std::numeric_limits<float>::max())));
  CHECK(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("dtypes have names and sizes") {
  for (DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64}) CHECK(parse_dtype(name(dtype)) == dtype);
  CHECK_FALSE(parse_dtype("f64").has_value());
  CHECK(size_of(DType::bf16) == 2);
}

TEST_CASE("shapes") {
  const Shape shape{2, 3, 5};
  CHECK(shape.elements() == 30);
  CHECK(shape.rows() == 6);
  CHECK(shape[-1] == 5);
  CHECK(to_string(shape) == "2,3,5");
  CHECK(shape == Shape{2, 3, 5});
  CHECK_FALSE(shape == Shape{2, 3});
  CHECK(Shape{}.elements() == 1);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1}), InternalError);
}

TEST_CASE("hashes equal XXH3's") {
  CHECK(hex(hash64(std::string_view())) == "2d06800538d394c2");  // XXH3_64bits of no bytes
}

TEST_CASE("LANCET_TRY and LANCET_ASSIGN return errors to the caller") {
  auto half = [](int x) -> Result<int> {
    if (x % 2) return config_error("expected an even number, found " + std::to_string(x));
    return x / 2;
  };
  auto quarter = [&](int x) -> Result<int> {
    LANCET_ASSIGN(const int h, half(x));
    LANCET_ASSIGN(const int q, half(h));
    return q;
  };
  CHECK(*quarter(12) == 3);
  CHECK(quarter(6).error().message == "expected an even number, found 3");
  CHECK(quarter(6).error().code == ExitCode::config);
}

}  // namespace lancet
