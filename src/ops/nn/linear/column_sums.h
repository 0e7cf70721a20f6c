// Device kernels for biases around a product: rounding of a bias, and sums over the rows of a matrix in a fixed order.
#pragma once
#include "lancet/base/dtype.h"
#include "ops/device/column_tile.h"

namespace lancet::ops::device {

// out[i] = x[i], i in [0, n)
struct RoundVector {
  static constexpr int threads = 256;
  const float* x;
  bf16* out;
  std::int64_t n;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < n) out[i] = from_f32<bf16>(x[i]);
  }
};

// out[part, column] = the sum of x[row, column] over the part's rows. Bytes: x once; parts * columns floats written.
// Each thread has four loads of 16 bytes in flight.
template <class T>
struct ColumnSums {
  using Tile = ColumnTile<T>;
  using Shared = typename Tile::Shared;
  static constexpr int threads = Tile::threads;
  static constexpr std::int64_t rows_of_part = 256;
  const T* x;  // [rows, columns]
  float* out;  // [parts, columns]
  std::int64_t rows, columns;
  bool wide;

  LANCET_HD std::int64_t parts() const { return divide_up(rows, rows_of_part); }
  LANCET_HD std::int64_t tiles() const { return divide_up(columns, Tile::columns); }
  std::int64_t blocks() const { return parts() * tiles(); }

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t part = block.index() / tiles(), first_column = block.index() % tiles() * Tile::columns;
    const std::int64_t start = first_column + block.warp_lane() * Pack<T>::size;
    const std::int64_t begin = part * rows_of_part, end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
    const Part of_row = part_of_row<T>(start, columns);
    Floats<T> sums = {};
    if (!of_row.empty())
#pragma unroll 4
      for (std::int64_t row = begin + block.warp(); row < end; row += Tile::warps)
        Tile::add(sums, to_floats(load(x + row * columns + start, of_row, wide)));
    Tile::write(block, sums, out + part * columns + first_column, columns - first_column);
  }
};

}  // namespace lancet::ops::device
