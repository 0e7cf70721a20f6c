// Writes the sums of a grouped product from a warp's registers: rounded, with bias and GELU, or in f32, added to a
// gradient.
#pragma once
#include "grouped_tiles.h"
#include "ops/device/pack.h"
#include "ops/gelu/math.h"
#include "tile_product.h"

namespace lancet::ops::device {
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

}  // namespace lancet::ops::device
