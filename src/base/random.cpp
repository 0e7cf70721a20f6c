// Philox4x32-10 and Box-Muller, written so that normal() and normals() give equal bits on every machine: the file is
// compiled for the machine's vector instructions but with -ffp-contract=off, which rounds each product and sum
// separately, and normal_pair uses only the branch-free functions of base/math.h. normals() works on 64 counters at a
// time: one vectorised loop runs the Philox rounds, a second turns their 4 * 64 words into normal numbers.
#include "lancet/base/random.h"

#include <algorithm>

#include "lancet/base/hash.h"
#include "lancet/base/math.h"
#include "lancet/base/philox.h"

namespace lancet {
namespace {

// Box-Muller: two normal numbers from two words. The radius is at most 6.66. The angle's quadrant is subtracted
// exactly, which leaves at most a quarter of pi for the polynomials of sine and cosine (Cephes).
LANCET_HD void normal_pair(std::uint32_t radius_word, std::uint32_t angle_word, float& first, float& second) {
  const float u = (float(std::int32_t(radius_word >> 1)) + 0.5f) * 0x1p-31f;  // (0, 1]
  const float radius = __builtin_sqrtf(-2.f * log_f32(u));
  const std::uint32_t quadrant = (angle_word + 0x20000000u) >> 30;
  const float x = float(std::int32_t(angle_word - (quadrant << 30))) * 1.46291807927e-9f;  // 2 pi / 2^32
  const float z = x * x;
  const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
  const float cosine =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.f;
  const bool odd = quadrant & 1, lower = quadrant & 2;
  const float a = odd ? -sine : cosine, b = odd ? cosine : sine;
  first = radius * (lower ? -a : a);
  second = radius * (lower ? -b : b);
}

}  // namespace

std::array<std::uint32_t, 4> Philox::block(std::uint64_t index) const {
  const PhiloxWords c = philox_block(seed_, stream_, index);
  return {c.word[0], c.word[1], c.word[2], c.word[3]};
}

float Philox::uniform(std::uint64_t index) const { return uniform_of_word(block(index / 4)[index % 4]); }

float Philox::normal(std::uint64_t index) const {
  const auto words = block(index / 4);
  const std::size_t pair = index / 2 % 2 * 2;
  float first, second;
  normal_pair(words[pair], words[pair + 1], first, second);
  return index % 2 ? second : first;
}

void Philox::normals(std::uint64_t first, std::span<float> values) const {
  constexpr std::size_t blocks = 64;
  const std::uint32_t k0 = std::uint32_t(seed_), k1 = std::uint32_t(seed_ >> 32);
  while (!values.empty()) {
    std::uint32_t words[4][blocks];
#pragma omp simd
    for (std::size_t j = 0; j < blocks; ++j) {
      const std::uint64_t index = first / 4 + j;
      std::uint32_t c0 = std::uint32_t(index), c1 = std::uint32_t(index >> 32), c2 = std::uint32_t(stream_),
                    c3 = std::uint32_t(stream_ >> 32);
      philox_rounds(c0, c1, c2, c3, k0, k1);
      words[0][j] = c0, words[1][j] = c1, words[2][j] = c2, words[3][j] = c3;
    }
    float drawn[4 * blocks];
#pragma omp simd
    for (std::size_t j = 0; j < blocks; ++j) {
      normal_pair(words[0][j], words[1][j], drawn[4 * j], drawn[4 * j + 1]);
      normal_pair(words[2][j], words[3][j], drawn[4 * j + 2], drawn[4 * j + 3]);
    }
    const std::size_t skipped = first % 4, count = std::min(values.size(), 4 * blocks - skipped);
    std::copy_n(drawn + skipped, count, values.begin());
    values = values.subspan(count);
    first += count;
  }
}

std::uint64_t Philox::below(std::uint64_t index, std::uint64_t bound) const {
  const auto words = block(index);
  const std::uint64_t x = std::uint64_t(words[0]) << 32 | words[1];
  return std::uint64_t((static_cast<unsigned __int128>(x) * bound) >> 64);
}

std::uint64_t stream_of(std::string_view name) { return hash64(name); }

}  // namespace lancet
