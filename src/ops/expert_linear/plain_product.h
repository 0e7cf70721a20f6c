// A tile of a product with f32 sums on plain arithmetic: 64x64 per block of 256 threads with 4x4 sums each. It serves
// f32 operands (checks), and rows that are not aligned to 16 bytes, as the copies for tensor cores require.
#pragma once
#include <cstdint>

#include "lancet/base/dtype.h"
#include "ops/device/launch.h"

namespace lancet::ops::device {

struct PlainShape {
  static constexpr int rows = 64, columns = 64, depth = 16, each = 4;
  static constexpr int threads = rows / each * (columns / each);
  static constexpr int pitch = rows + 4;  // keeps rows of a slice 16-byte aligned and out of each other's banks
  static constexpr int shared_bytes = 2 * depth * pitch * int(sizeof(float));
  static_assert(rows == columns);
};

// Element (row, k) at data[row * row_stride + k * k_stride]; rows beyond `rows` count as zero and are not read.
template <class T>
struct PlainOperand {
  const T* data;
  std::int64_t row_stride, k_stride;
  int rows;
};

struct PlainSums {
  float c[PlainShape::each][PlainShape::each];
  float row_sums[PlainShape::each];  // sums of A's rows over k
};

LANCET_DEVICE int plain_row(int thread) { return thread / (PlainShape::columns / PlainShape::each) * PlainShape::each; }
LANCET_DEVICE int plain_column(int thread) {
  return thread % (PlainShape::columns / PlainShape::each) * PlainShape::each;
}

template <class T, class Block>
LANCET_DEVICE void copy_plain(Block& block, float* slice, const PlainOperand<T>& operand, int k, int depth) {
  using P = PlainShape;
  const bool along_k = operand.k_stride == 1;  // neighbouring threads read neighbouring elements
#pragma unroll 2                               // more would need registers that the sums use
  for (int i = block.thread(); i < P::rows * P::depth; i += P::threads) {
    const int row = along_k ? i / P::depth : i % P::rows, inner = along_k ? i % P::depth : i / P::rows;
    const bool there = row < operand.rows && k + inner < depth;
    slice[inner * P::pitch + row] =
        there ? to_f32(operand.data[row * operand.row_stride + (k + inner) * operand.k_stride]) : 0.f;
  }
}

// sums = A B^T over k in [0, depth), with the contract of tile_product.
template <class T, class Block>
LANCET_DEVICE void plain_product(Block& block, void* shared, const PlainOperand<T>& a, const PlainOperand<T>& b,
                                 int depth, PlainSums& sums) {
  using P = PlainShape;
  float *slice_a = static_cast<float*>(shared), *slice_b = slice_a + P::depth * P::pitch;
  const int row = plain_row(block.thread()), column = plain_column(block.thread());
  sums = PlainSums{};
  for (int k = 0; k < depth; k += P::depth) {
    copy_plain(block, slice_a, a, k, depth);
    copy_plain(block, slice_b, b, k, depth);
    block.sync();
#pragma unroll
    for (int inner = 0; inner < P::depth; ++inner) {
      const float *x = slice_a + inner * P::pitch + row, *y = slice_b + inner * P::pitch + column;
#pragma unroll
      for (int i = 0; i < P::each; ++i) {
        sums.row_sums[i] += x[i];
#pragma unroll
        for (int j = 0; j < P::each; ++j) sums.c[i][j] += x[i] * y[j];
      }
    }
    block.sync();
  }
}

}  // namespace lancet::ops::device
