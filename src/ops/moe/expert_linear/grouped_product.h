// The three products of experts' linear layers over filled rows (ExpertProduct), as device kernels: one functor on
// tensor cores, one on plain arithmetic.
//
// The kernel reads the ranges of filled rows itself, so that the host need not know them. (cublasGemmGroupedBatchedEx
// takes extents from the host.) Block b of n computes the tiles b, b + n, ... of the list that the ranges make. One
// block computes a tile over all of k, so results are the same in every run, whatever the order of the tiles and
// however large they are.
#pragma once

#include <cstdint>

#include "grouped_tiles.h"
#include "lancet/base/dtype.h"
#include "ops/device/launch.h"
#include "ops/device/pack.h"
#include "ops/nn/gelu/math.h"
#include "tile_product.h"

namespace lancet::ops::device {

// Writes the sums of a grouped product from a warp's registers: rounded, with bias and GELU, or in f32, added to a
// gradient.
namespace detail {

struct alignas(16) Piece {
  bf16 values[8];
};
struct alignas(8) FloatPair {
  float x, y;
};

// A warp's 64x64 window of a bf16 matrix. Sixteen rows at a time go through shared memory, so that accesses to global
// memory are of 16 bytes.
struct WarpWindow {
  bf16* shared;   // the warp's stage
  bf16* outside;  // the thread's piece of row 0 in global memory
  int width;      // columns of the matrix
  int rows;       // valid rows, from the window's first row on
  bool there;     // the thread's columns are within the matrix

  LANCET_DEVICE WarpWindow(bf16* shared, bf16* matrix, const GroupedTile& tile, int width, int first_row,
                           int first_column, int warp_lane)
      : shared(shared),
        outside(matrix + (tile.first_row + first_row) * width + first_column + warp_lane % 8 * 8),
        width(width),
        rows(tile.rows - first_row),
        there(first_column + warp_lane % 8 * 8 < width) {}

  // The address of the thread's pair of fragment (i, j), in row 16 * i + 8 * half + g; permuted against bank conflicts.
  LANCET_DEVICE bf16* pair(int i, int j, int half, int g, int t) const {
    return shared + (16 * i + 8 * half + g) * TileShape::warp_columns + (j ^ g) * 8 + 2 * t;
  }
  LANCET_DEVICE Piece* piece(int row, int warp_lane) const {
    return reinterpret_cast<Piece*>(shared + row * TileShape::warp_columns + (warp_lane % 8 ^ row % 8) * 8);
  }
  LANCET_DEVICE void write(int i, int warp_lane) const {
#pragma unroll 4
    for (int row = 16 * i + warp_lane / 8; row < 16 * (i + 1); row += 4)
      if (row < rows && there) *reinterpret_cast<Piece*>(outside + std::int64_t(row) * width) = *piece(row, warp_lane);
  }
  // Copies the whole window into shared memory.
  template <class Block>
  LANCET_DEVICE void read(Block& block, int warp_lane) const {
    Copies copies;
#pragma unroll 1  // more would need registers that the sums use
    for (int row = warp_lane / 8; row < TileShape::warp_rows; row += 4)
      copies.start(shared_address(piece(row, warp_lane)), outside + std::int64_t(row) * width, row < rows && there);
    copies.end_group();
    copies.template wait<0>();
    block.sync_warp();
  }
};

// Stores a warp's 64x64 of a tile, rounded to bf16. With GELU, forward stores sums + bias as the argument and the GELU
// of it as the result; dx multiplies the sums by GELU's slope at the argument.
template <ExpertProduct product, bool with_gelu, class Block>
LANCET_DEVICE void store_rounded(Block& block, void* shared, const GroupedOperands<bf16>& p, GroupedTile tile,
                                 const TileSums<TileShape>& sums) {
  using S = TileShape;
  constexpr bool forward = product == ExpertProduct::forward;
  constexpr int window_size = S::warp_rows * S::warp_columns, warps = S::threads / warp_size;
  static_assert(2 * warps * window_size * int(sizeof(bf16)) <= S::shared_bytes);
  const int warp_lane = block.warp_lane(), g = warp_lane / 4, t = warp_lane % 4;
  const int first_row = tile.row + warp_row<S>(block.thread()),
            first_column = tile.column + warp_column<S>(block.thread());
  bf16* stage = static_cast<bf16*>(shared) + block.warp() * window_size;
  const WarpWindow result(stage, static_cast<bf16*>(p.c), tile, p.width, first_row, first_column, warp_lane);
  const WarpWindow argument(stage + warps * window_size, with_gelu ? p.argument : result.outside, tile, p.width,
                            first_row, first_column, warp_lane);
  const float* bias = forward && p.bias ? p.bias + std::int64_t(tile.expert) * p.all_columns : nullptr;
  if constexpr (with_gelu && !forward) argument.read(block, warp_lane);
#pragma unroll
  for (int i = 0; i < S::fragments_down; ++i) {
#pragma unroll
    for (int j = 0; j < S::fragments_across; ++j) {
      const int column = first_column + 8 * j + 2 * t;
      float b[2] = {0.f, 0.f};
      if (bias && column < p.width) b[0] = bias[column], b[1] = bias[column + 1];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = sums.c[i][j][2 * half] + b[0], y = sums.c[i][j][2 * half + 1] + b[1];
        if constexpr (with_gelu && forward) {
          const Bf16Pair pair = rounded_pair(x, y);
          memcpy(argument.pair(i, j, half, g, t), &pair, 4);
          x = gelu(x), y = gelu(y);
        } else if constexpr (with_gelu) {
          bf16 pair[2];
          memcpy(pair, argument.pair(i, j, half, g, t), 4);
          x *= gelu_slope(to_f32(pair[0])), y *= gelu_slope(to_f32(pair[1]));
        }
        const Bf16Pair pair = rounded_pair(x, y);
        memcpy(result.pair(i, j, half, g, t), &pair, 4);
      }
    }
    block.sync_warp();
    result.write(i, warp_lane);
    if constexpr (with_gelu && forward) argument.write(i, warp_lane);
  }
  block.sync();  // the next tile's slices overwrite the stage
}

// Stores a warp's sums of dw in f32, or adds it; with row_sums also the bias gradient of the warp's rows.
template <class S, class Block>
LANCET_DEVICE void store_gradient(Block& block, const GroupedOperands<bf16>& p, GroupedTile tile,
                                  const TileSums<S>& sums, bool row_sums) {
  const int warp_lane = block.warp_lane(), g = warp_lane / 4, t = warp_lane % 4;
  const int first_row = tile.row + warp_row<S>(block.thread()),
            first_column = tile.column + warp_column<S>(block.thread());
#pragma unroll
  for (int i = 0; i < S::fragments_down; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * i + 8 * half + g;
      if (row >= p.height) continue;
      const std::int64_t of_expert = std::int64_t(tile.expert) * p.height + row;
#pragma unroll
      for (int j = 0; j < S::fragments_across; ++j) {
        const int column = first_column + 8 * j + 2 * t;
        if (column >= p.width) continue;
        FloatPair* at = reinterpret_cast<FloatPair*>(static_cast<float*>(p.c) + of_expert * p.width + column);
        FloatPair sum{sums.c[i][j][2 * half], sums.c[i][j][2 * half + 1]};
        if (p.accumulate) sum = {at->x + sum.x, at->y + sum.y};
        *at = sum;
      }
      if (row_sums && t == 0) p.db[of_expert] = (p.accumulate ? p.db[of_expert] : 0.f) + sums.row_sums[i][2 * half];
    }
}

}  // namespace detail

// A tile of a product with f32 sums on plain arithmetic: 64x64 per block of 256 threads with 4x4 sums each. It serves
// f32 operands (checks), and rows that are not aligned to 16 bytes, as the copies for tensor cores require.
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

// On tensor cores. width, and height (dw) or depth (forward, dx), are multiples of 8; pointers are aligned to 16 bytes.
template <ExpertProduct product, Epilogue epilogue = Epilogue::round>
struct GroupedTensorProduct {
  static constexpr int threads = TileShape::threads;
  static constexpr int blocks_per_sm = 2;  // one multiplies while the other waits or stores
  struct Shared {
    std::byte ring[TileShape::shared_bytes + 112];  // a block's shared memory is aligned to 16 bytes, the ring to 128
    // The current tile is in shared memory, because the sums use all registers.
    GroupedTile tile;
    bool more;
  };
  GroupedOperands<bf16> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if constexpr (product == ExpertProduct::dw)
      gradient(block);
    else
      multiply(block);
  }

 private:
  // Forward, dx: computes the block's tiles.
  template <class Block>
  LANCET_DEVICE void multiply(Block& block) const {
    using S = TileShape;
    auto& kept = block.template shared<Shared>();
    std::byte* shared = aligned_ring(block);
    for (int index = int(block.index());; index += int(block.count())) {
      // All threads of the warp write the same values: a tile that one of them copies there costs more registers.
      if (block.warp() == 0) kept.more = GroupedTiles().find<product, S::rows, S::columns>(block, p, index, kept.tile);
      block.sync();
      if (!kept.more) return;
      const GroupedTile& tile = kept.tile;
      constexpr Along along_b = product == ExpertProduct::forward ? Along::k : Along::rows;
      const bf16* b = p.b + std::int64_t(tile.expert) * p.all_columns * p.depth;
      const std::int64_t stride_b = along_b == Along::k ? p.depth : p.all_columns;
      TileSums<S> sums;
      tile_product<Along::k, along_b, false>(
          block, shared, {p.a + (tile.first_row + tile.row) * p.depth, p.depth, tile.rows - tile.row},
          {b + (along_b == Along::k ? tile.column * stride_b : tile.column), stride_b, p.width - tile.column}, p.depth,
          sums, false);
      detail::store_rounded<product, epilogue == Epilogue::gelu>(block, shared, p, kept.tile, sums);
    }
  }

  template <class Block>
  LANCET_DEVICE std::byte* aligned_ring(Block& block) const {
    std::byte* ring = block.template shared<Shared>().ring;
    return ring + (128 - shared_address(ring) % 128) % 128;
  }

  // dw: the block computes one tile, or a quarter of one. In a loop over tiles the two shapes would need more
  // registers.
  template <class Block>
  LANCET_DEVICE void gradient(Block& block) const {
    GroupedTile tile;
    const int index = int(block.index());
    if (!GroupedTiles().find<product, TileShape::rows, TileShape::columns>(block, p, index, tile)) return;
    if (!tile.quarter)
      gradient<TileShape>(block, tile);
    else if (tile.row < p.height && tile.column < p.width)
      gradient<QuarterShape>(block, tile);
  }
  template <class Shape, class Block>
  LANCET_DEVICE void gradient(Block& block, const GroupedTile& tile) const {
    const bf16 *a = p.a + tile.first_row * p.height, *b = p.b + tile.first_row * p.width;
    const bool row_sums = p.db && tile.column + warp_column<Shape>(block.thread()) == 0;
    TileSums<Shape> sums;
    tile_product<Along::rows, Along::rows, true>(
        block, aligned_ring(block), {a + tile.row, p.height, p.height - tile.row},
        {b + tile.column, p.width, p.width - tile.column}, tile.rows, sums, row_sums);
    detail::store_gradient(block, p, tile, sums, row_sums);
  }
};

// On plain arithmetic, for any extents.
template <class T, ExpertProduct product, Epilogue epilogue = Epilogue::round>
struct GroupedPlainProduct {
  static constexpr int threads = PlainShape::threads;
  struct alignas(16) Shared {
    std::byte slices[PlainShape::shared_bytes];
  };
  GroupedOperands<T> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    using S = PlainShape;
    GroupedTile tile;
    for (int index = int(block.index()); GroupedTiles().find<product, S::rows, S::columns>(block, p, index, tile);
         index += int(block.count())) {
      PlainSums sums;
      if constexpr (product == ExpertProduct::dw) {
        plain_product<T>(block, block.shared_memory(),
                         {p.a + tile.first_row * p.height + tile.row, 1, p.height, p.height - tile.row},
                         {p.b + tile.first_row * p.width + tile.column, 1, p.width, p.width - tile.column}, tile.rows,
                         sums);
      } else {
        constexpr bool along_k = product == ExpertProduct::forward;
        const T* b = p.b + std::int64_t(tile.expert) * p.all_columns * p.depth;
        const std::int64_t row_stride = along_k ? p.depth : 1, k_stride = along_k ? 1 : p.all_columns;
        plain_product<T>(block, block.shared_memory(),
                         {p.a + (tile.first_row + tile.row) * p.depth, p.depth, 1, tile.rows - tile.row},
                         {b + tile.column * row_stride, row_stride, k_stride, p.width - tile.column}, p.depth, sums);
      }
      store(block, tile, sums);
    }
  }

 private:
  template <class Block>
  LANCET_DEVICE void store(Block& block, const GroupedTile& tile, const PlainSums& sums) const {
    const int first_column = tile.column + plain_column(block.thread());
    for (int i = 0; i < PlainShape::each; ++i) {
      const int row = tile.row + plain_row(block.thread()) + i;
      if (row >= (product == ExpertProduct::dw ? p.height : tile.rows)) return;
      const std::int64_t of_all =
          product == ExpertProduct::dw ? std::int64_t(tile.expert) * p.height + row : tile.first_row + row;
      for (int j = 0; j < PlainShape::each && first_column + j < p.width; ++j) {
        const std::int64_t at = of_all * p.width + first_column + j;
        if constexpr (product == ExpertProduct::dw) {
          float* c = static_cast<float*>(p.c) + at;
          *c = (p.accumulate ? *c : 0.f) + sums.c[i][j];
        } else {
          float value = sums.c[i][j];
          if (product == ExpertProduct::forward && p.bias)
            value += p.bias[std::int64_t(tile.expert) * p.all_columns + first_column + j];
          if constexpr (epilogue == Epilogue::gelu && product == ExpertProduct::forward) {
            p.argument[at] = from_f32<T>(value);
            value = gelu(value);
          } else if constexpr (epilogue == Epilogue::gelu) {
            value *= gelu_slope(to_f32(p.argument[at]));
          }
          static_cast<T*>(p.c)[at] = from_f32<T>(value);
        }
      }
      if (product == ExpertProduct::dw && p.db && first_column == 0)
        p.db[of_all] = (p.accumulate ? p.db[of_all] : 0.f) + sums.row_sums[i];
    }
  }
};

}  // namespace lancet::ops::device
