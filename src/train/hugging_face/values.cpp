#include "values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "lancet/base/check.h"
#include "lancet/base/dtype.h"

namespace lancet::train::hugging_face {
namespace {

// IEEE half precision; every value is exact in f32.
float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
  const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16;
  if (exponent == 0) return std::copysign(std::ldexp(float(mantissa), -24), sign ? -1.f : 1.f);
  const std::uint32_t wide = exponent == 0x1f ? 0xff : std::uint32_t(exponent) + 112;
  return std::bit_cast<float>(sign | wide << 23 | std::uint32_t(mantissa) << 13);
}

template <class T, class F>
void widen(std::span<const std::byte> bytes, std::span<float> values, F f) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = f(x);
  }
}

}  // namespace

bool is_weight_type(std::string_view dtype) { return dtype == "F32" || dtype == "F16" || dtype == "BF16"; }

void to_floats(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> values) {
  LANCET_CHECK(bytes.size() == values.size() * (dtype == "F32" ? 4 : 2), "{} bytes of {} {}", bytes.size(),
               values.size(), dtype);
  if (dtype == "F32") return widen<float>(bytes, values, [](float x) { return x; });
  if (dtype == "F16") return widen<std::uint16_t>(bytes, values, from_half);
  widen<bf16>(bytes, values, [](bf16 x) { return to_f32(x); });
}

void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes) {
  LANCET_CHECK(bytes.size() == values.size() * std::size_t(size_of(dtype)), "{} bytes of {} {}", bytes.size(),
               values.size(), name(dtype));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bf16 x = from_f32<bf16>(values[i]);
    std::memcpy(bytes.data() + 2 * i, &x, 2);
  }
}

std::span<float> place_of(const Entry& entry, std::span<float> parameter, std::int64_t rows) {
  const auto count = static_cast<std::size_t>(entry.shape.elements());
  if (entry.expert < 0) return parameter.first(count);  // of a padded vocabulary: the real tokens come first
  LANCET_CHECK(entry.expert < rows && count * std::size_t(rows) == parameter.size(), "expert {} of {} in {}",
               entry.expert, rows, entry.parameter);
  return parameter.subspan(std::size_t(entry.expert) * count, count);
}

void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to) {
  constexpr std::int64_t block = 64;  // both sides of a block stay in the cache
  for (std::int64_t r0 = 0; r0 < rows; r0 += block)
    for (std::int64_t c0 = 0; c0 < columns; c0 += block)
      for (std::int64_t r = r0; r < std::min(r0 + block, rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + block, columns); ++c)
          to[std::size_t(c * rows + r)] = from[std::size_t(r * columns + c)];
}

}  // namespace lancet::train::hugging_face
