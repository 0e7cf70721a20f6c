#include "lancet/base/random.h"

#include <cmath>
#include <numbers>

#include "lancet/base/hash.h"

namespace lancet {

std::array<std::uint32_t, 4> Philox::block(std::uint64_t index) const {
  std::array<std::uint32_t, 4> c{std::uint32_t(index), std::uint32_t(index >> 32), std::uint32_t(stream_),
                                 std::uint32_t(stream_ >> 32)};
  std::uint32_t k0 = std::uint32_t(seed_), k1 = std::uint32_t(seed_ >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0], p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {std::uint32_t(p1 >> 32) ^ c[1] ^ k0, std::uint32_t(p1), std::uint32_t(p0 >> 32) ^ c[3] ^ k1, std::uint32_t(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

float Philox::uniform(std::uint64_t index) const {
  return float(block(index / 4)[index % 4] >> 8) * 0x1p-24f;
}

float Philox::normal(std::uint64_t index) const {
  const auto words = block(index / 2);
  const std::size_t first = (index % 2) * 2;
  const double u = (words[first] + 1.0) * 0x1p-32, v = words[first + 1] * 0x1p-32;
  return float(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

std::uint64_t Philox::below(std::uint64_t index, std::uint64_t bound) const {
  const auto words = block(index);
  const std::uint64_t x = std::uint64_t(words[0]) << 32 | words[1];
  return std::uint64_t((static_cast<unsigned __int128>(x) * bound) >> 64);
}

std::uint64_t stream_of(std::string_view name) { return hash64(name); }

}  // namespace lancet
