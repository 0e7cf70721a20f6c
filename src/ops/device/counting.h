// Stable counting: finds for each item the number of earlier items in the same bin.
//
// It takes three steps. (1) A block per chunk of items counts how many items of the chunk are in each bin:
// counts[bin * chunks + chunk]. (2) ScanChunks turns the counts of each bin into sums over the chunks before, and
// ScanBins turns the totals of the bins into the position where each bin begins. (3) A block per chunk adds up, for
// each item, begin of the bin + count of the chunks before + number of equal items before it in the chunk
// (count_equal). All sums are of integers, so the result does not depend on the order of blocks.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

// Replaces counts[i], i in [0, n), by the sum of the counts before i; returns the sum of all to every thread.
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

// The number of elements of bins[0, n) that equal `bin`.
LANCET_DEVICE std::int32_t count_equal(const std::int32_t* bins, int n, std::int32_t bin) {
  std::int32_t count = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) count += bins[i] == bin;
  return count;
}

// A block per bin: replaces counts[bin * chunks + chunk] by the sum over the chunks before, and sets totals[bin].
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

// One block: replaces totals[bin] by the position where the bin's items begin, and sets ends[bin] to where they end.
struct ScanBins {
  static constexpr int threads = 1024;
  std::int32_t *totals, *ends;
  std::int64_t bins;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    for (std::int64_t bin = block.thread(); bin < bins; bin += threads) ends[bin] = totals[bin];
    scan_in_place(block, totals, bins);
    for (std::int64_t bin = block.thread(); bin < bins; bin += threads) ends[bin] += totals[bin];  // set by this thread
  }
};

}  // namespace lancet::ops::device
