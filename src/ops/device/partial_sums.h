// The second stage of sums over rows: adds the partial sums of the pieces, in a fixed order.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

// out[i] = (or += if accumulate) the sum of parts[p * n + i] over p; results from `split` on go to rest[i - split].
// A block has 32 columns; its warps share the pieces, and their sums are added in order. Bytes: n * (pieces + 1)
// floats.
struct AddParts {
  static constexpr int threads = 512, warps = threads / warp_size;
  struct Shared {
    float sums[warps][warp_size];
  };
  const float* parts;  // [pieces, n]
  std::int64_t pieces, n;
  bool accumulate;
  float* out;  // [split]
  std::int64_t split = n;
  float* rest = nullptr;  // [n - split]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * warp_size + block.warp_lane();
    constexpr int ahead = 10;  // loads in flight at once: all of 160 pieces, thus of a piece a multiprocessor
    float sum = 0;
    if (i < n)
      for (std::int64_t first = block.warp(); first < pieces; first += ahead * warps) {
        float v[ahead];
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
          const std::int64_t p = first + j * warps;
          v[j] = p < pieces ? parts[p * n + i] : 0.f;
        }
#pragma unroll
        for (int j = 0; j < ahead; ++j) sum += v[j];
      }
    Shared& shared = block.template shared<Shared>();
    shared.sums[block.warp()][block.warp_lane()] = sum;
    block.sync();
    if (block.warp() > 0 || i >= n) return;
    float* to = i < split ? out + i : rest + (i - split);
    float total = accumulate ? *to : 0.f;
    for (int w = 0; w < warps; ++w) total += shared.sums[w][block.warp_lane()];
    *to = total;
  }
  std::int64_t blocks() const { return divide_up(n, warp_size); }
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
