// Stable counting: items in their order, each in one of some bins, and where each lies among those of its bin. Three
// steps: chunks of items count their bins; the counts of each bin are scanned over the chunks; within a chunk an item
// counts its equals before it. Whole numbers only, so the order of blocks does not matter.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

// counts[i] of [0, n) becomes the sum of those before i; returns the sum of all, to all threads.
template <class Block>
LANCET_DEVICE std::int32_t scan_in_place(Block& block, std::int32_t* counts, std::int64_t n) {
  std::int32_t before = 0;
  for (std::int64_t first = 0; first < n; first += Block::threads()) {
    const std::int64_t i = first + block.thread();
    std::int32_t total;
    const std::int32_t lower = block.exclusive_scan(i < n ? counts[i] : 0, total);
    if (i < n) counts[i] = before + lower;
    before += total;
  }
  return before;
}

// How many of bins[0, n) are `bin`.
LANCET_DEVICE std::int32_t count_equal(const std::int32_t* bins, int n, std::int32_t bin) {
  std::int32_t count = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) count += bins[i] == bin;
  return count;
}

// counts[bin * chunks + chunk] and totals[bin], given the counts of each chunk.
struct ScanChunks {
  static constexpr int threads = 256;
  std::int32_t* counts;
  std::int64_t chunks;
  std::int32_t* totals;  // [bins]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int32_t total = scan_in_place(block, counts + block.index() * chunks, chunks);
    if (block.thread() == 0) totals[block.index()] = total;
  }
};

// totals[bin] becomes where the bin's items begin, and ends[bin] where they end. One block.
struct ScanBins {
  static constexpr int threads = 1024;
  std::int32_t *totals, *ends;
  std::int64_t bins;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    for (std::int64_t bin = block.thread(); bin < bins; bin += threads) ends[bin] = totals[bin];
    scan_in_place(block, totals, bins);
    for (std::int64_t bin = block.thread(); bin < bins; bin += threads) ends[bin] += totals[bin];  // a thread's own bins
  }
};

}  // namespace lancet::ops::device
