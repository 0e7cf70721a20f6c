// The second stage of sums over rows: adds the partial sums of the pieces, in the order of the pieces.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

// out[i] = (or += if accumulate) the sum of parts[p * n + i] over p; results from `split` on go to rest[i - split].
// Bytes: n * (pieces + 1) floats.
struct AddParts {
  static constexpr int threads = 64;
  const float* parts;  // [pieces, n]
  std::int64_t pieces, n;
  bool accumulate;
  float* out;  // [split]
  std::int64_t split = n;
  float* rest = nullptr;  // [n - split]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= n) return;
    float* to = i < split ? out + i : rest + (i - split);
    float sum = accumulate ? *to : 0.f;
    constexpr int ahead = 16;  // loads in flight at once
    std::int64_t p = 0;
    for (; p + ahead <= pieces; p += ahead) {
      float v[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j) v[j] = parts[(p + j) * n + i];
#pragma unroll
      for (int j = 0; j < ahead; ++j) sum += v[j];
    }
    for (; p < pieces; ++p) sum += parts[p * n + i];
    *to = sum;
  }
  std::int64_t blocks() const { return divide_up(n, threads); }
};

// One block: out[0] = factor * the sum of parts[0, pieces).
struct AddUp {
  static constexpr int threads = 1024;
  const float* parts;
  std::int64_t pieces;
  float factor;
  float* out;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    float sum = 0;
    for (std::int64_t p = block.thread(); p < pieces; p += threads) sum += parts[p];
    sum = block.sum(sum);
    if (block.thread() == 0) out[0] = sum * factor;
  }
};

}  // namespace lancet::ops::device
