#include "reduce.h"

#include <algorithm>
#include <cstring>

namespace lancet::comm {

void sum_in_rank_order(std::span<const float* const> parts, float* out, std::size_t count) {
  // Sums of a block stay in L1, so that `out` may be any of the parts and each part is read once.
  constexpr std::size_t block = 1024;
  alignas(64) float sum[block];
  for (std::size_t start = 0; start < count; start += block) {
    const std::size_t n = std::min(block, count - start);
    std::memcpy(sum, parts[0] + start, n * sizeof(float));
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const float* part = parts[p] + start;
      for (std::size_t i = 0; i < n; ++i) sum[i] += part[i];
    }
    std::memcpy(out + start, sum, n * sizeof(float));
  }
}

}  // namespace lancet::comm
