// Element types, and bf16 as a plain 16-bit struct that both backends share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "lancet/base/hd.h"

namespace lancet {

enum class DType : std::uint8_t { f32, bf16, i32, i64 };

constexpr std::string_view name(DType dtype) {
  constexpr std::string_view names[] = {"f32", "bf16", "i32", "i64"};
  return names[static_cast<std::size_t>(dtype)];
}
// The inverse.
constexpr std::optional<DType> parse_dtype(std::string_view text) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64})
    if (name(dtype) == text) return dtype;
  return std::nullopt;
}
// Bytes per element.
constexpr int size_of(DType dtype) { return dtype == DType::bf16 ? 2 : dtype == DType::i64 ? 8 : 4; }

struct bf16 {
  std::uint16_t bits;
};

LANCET_HD float to_f32(float x) { return x; }
LANCET_HD float to_f32(bf16 x) {
  std::uint32_t u = std::uint32_t(x.bits) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

template <class T>
LANCET_HD T from_f32(float x);
template <>
LANCET_HD float from_f32<float>(float x) {
  return x;
}
// Rounds to nearest even; a NaN stays a quiet NaN.
template <>
LANCET_HD bf16 from_f32<bf16>(float x) {
  std::uint32_t u;
  memcpy(&u, &x, 4);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return bf16{std::uint16_t(nan ? 0x7fffu : rounded)};
}

template <class T>
constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;

}  // namespace lancet
