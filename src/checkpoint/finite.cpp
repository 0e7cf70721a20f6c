#include <fmt/format.h>

#include <cstring>

#include "lancet/checkpoint/safetensors.h"

namespace lancet::checkpoint {
namespace {

constexpr std::uint32_t exponent = 0x7f800000;  // all ones: infinity or NaN

std::uint32_t exponent_of(std::span<const std::byte> floats, std::size_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, floats.data() + i * sizeof bits, sizeof bits);
  return bits & exponent;
}

bool all_finite(std::span<const std::byte> floats) {
  constexpr std::size_t group = 32;  // the inner loop has a fixed length and no branch, so the compiler vectorises it
  const std::size_t count = floats.size() / sizeof(float);
  std::uint32_t found = 0;
  std::size_t i = 0;
  for (; i + group <= count && !found; i += group)
    for (std::size_t k = 0; k < group; ++k) found |= exponent_of(floats, i + k) == exponent;
  for (; i < count; ++i) found |= exponent_of(floats, i) == exponent;
  return !found;
}

}  // namespace

Status check_finite(const TensorInfo& tensor, std::uint64_t at, std::span<const std::byte> piece) {
  if (all_finite(piece)) return {};
  std::size_t first = 0;
  while (exponent_of(piece, first) != exponent) ++first;
  return data_error(fmt::format("{}: expected finite numbers, found a non-finite one at element {}", tensor.name,
                                at / sizeof(float) + first));
}

}  // namespace lancet::checkpoint
