// The three products of experts' linear layers over filled rows (ExpertProduct), as device kernels: one functor on
// tensor cores, one on plain arithmetic.
//
// The kernel reads the ranges of filled rows itself, so that the host need not know them. (cublasGemmGroupedBatchedEx
// takes extents from the host.) Block b of n computes the tiles b, b + n, ... of the list that the ranges make. One
// block computes a tile over all of k, so results are the same in every run, whatever the order of the tiles and
// however large they are.
#pragma once
#include "grouped_store.h"
#include "grouped_tiles.h"
#include "ops/gelu/math.h"
#include "plain_product.h"
#include "tile_product.h"

namespace lancet::ops::device {

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
    const bool row_sums = tile.column + warp_column<Shape>(block.thread()) == 0;
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
      if (product == ExpertProduct::dw && first_column == 0)
        p.db[of_all] = (p.accumulate ? p.db[of_all] : 0.f) + sums.row_sums[i];
    }
  }
};

}  // namespace lancet::ops::device
