// Device kernels for biases around a product: rounding of a bias, and sums over the rows of a matrix in a fixed order.
#pragma once
#include "lancet/base/dtype.h"
#include "ops/device/launch.h"

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

// out[part, column] = the sum of x[row, column] over the part's rows. One thread per column, so that neighbouring
// threads read neighbouring elements.
template <class T>
struct ColumnSums {
  static constexpr int threads = 128;
  static constexpr std::int64_t rows_of_part = 256;
  const T* x;  // [rows, columns]
  float* out;  // [parts, columns]
  std::int64_t rows, columns;

  LANCET_HD std::int64_t parts() const { return divide_up(rows, rows_of_part); }
  std::int64_t blocks() const { return parts() * divide_up(columns, threads); }

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t part = block.index() / divide_up(columns, threads);
    const std::int64_t column = block.index() % divide_up(columns, threads) * threads + block.thread();
    if (column >= columns) return;
    const std::int64_t begin = part * rows_of_part, end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
    float sums[4] = {};  // four independent chains of additions
    std::int64_t row = begin;
    for (; row + 4 <= end; row += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += to_f32(x[(row + i) * columns + column]);
    for (; row < end; ++row) sums[0] += to_f32(x[row * columns + column]);
    out[part * columns + column] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

// out[column] = (or += if accumulate) the sum of x[part, column] over parts
struct AddParts {
  static constexpr int threads = 128;
  const float* x;
  float* out;
  std::int64_t parts, columns;
  bool accumulate;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t column = block.index() * threads + block.thread();
    if (column >= columns) return;
    float sum = 0.f;
    for (std::int64_t part = 0; part < parts; ++part) sum += x[part * columns + column];
    out[column] = accumulate ? out[column] + sum : sum;
  }
};

}  // namespace lancet::ops::device
