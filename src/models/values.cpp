#include "files.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lancet/base/check.h"

namespace lancet::models {
namespace {

// Converts IEEE half precision, whose values are all exact in f32. It has no branches, so that loops vectorise.
// Exponent and mantissa, moved to f32's positions, are the number over 2^112, also for subnormal numbers.
float from_half(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16, rest = std::uint32_t(bits & 0x7fff) << 13;
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);
  const std::uint32_t infinite = rest | 0x7f800000;  // or NaN, with its payload
  return std::bit_cast<float>(sign | (rest >= 0x0f800000 ? infinite : scaled));
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
  if (dtype == "F32") {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  if (dtype == "F16") return widen<std::uint16_t>(bytes, values, from_half);
  widen<bf16>(bytes, values, [](bf16 x) { return to_f32(x); });
}

void from_floats(std::string_view dtype, std::span<const float> values, std::span<std::byte> bytes) {
  LANCET_CHECK(bytes.size() == values.size() * (dtype == "F32" ? 4 : 2), "{} bytes of {} {}", bytes.size(),
               values.size(), dtype);
  if (dtype == "F32") {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto x = dtype == "BF16" ? from_f32<bf16>(values[i]).bits : std::bit_cast<std::uint16_t>(_Float16(values[i]));
    std::memcpy(bytes.data() + 2 * i, &x, 2);
  }
}

void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to) {
  constexpr std::int64_t block = 64;  // both sides of a block stay in the cache
  for (std::int64_t r0 = 0; r0 < rows; r0 += block)
    for (std::int64_t c0 = 0; c0 < columns; c0 += block)
      for (std::int64_t r = r0; r < std::min(r0 + block, rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + block, columns); ++c)
          to[std::size_t(c * rows + r)] = from[std::size_t(r * columns + c)];
}

}  // namespace lancet::models
