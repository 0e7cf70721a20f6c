// Sums by column, the first stage of sums over rows: a block adds rows of a tile of columns. A thread has one pack of
// neighbouring columns, the warps share the rows.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

template <class T>
struct ColumnTile {
  static constexpr int threads = 256, warps = threads / warp_size;
  static constexpr int columns = warp_size * Pack<T>::size;
  // The distance of a thread's neighbouring columns in shared memory: column i of the 32 threads of a warp, and 32
  // neighbouring columns as well, are in 32 banks.
  static constexpr int stride = warp_size + warp_size / Pack<T>::size;
  struct Shared {
    float sums[warps][Pack<T>::size * stride];
  };

  LANCET_DEVICE static void add(Floats<T>& sums, const Floats<T>& row) {
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) sums.v[i] += row.v[i];
  }

  // out[c] = the sum over the warps, in order, of the thread's sums of column c, for c in [0, columns) below n. Between
  // two calls the block must meet at a barrier.
  template <class Block>
  LANCET_DEVICE static void write(Block& block, const Floats<T>& own, float* out, std::int64_t n) {
    Shared& shared = block.template shared<Shared>();
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) shared.sums[block.warp()][i * stride + block.warp_lane()] = own.v[i];
    block.sync();
    for (int c = block.thread(); c < columns && c < n; c += threads) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += shared.sums[w][c % Pack<T>::size * stride + c / Pack<T>::size];
      out[c] = sum;
    }
  }
};

}  // namespace lancet::ops::device
