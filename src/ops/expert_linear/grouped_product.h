// The three products of experts' linear layers over filled rows, one functor each, for the device and for the host.
//
// The ranges of filled rows are read where the kernel runs: nobody waits for counts, and a block takes one tile after
// another from the list that the ranges make. A tile is one block's from end to end, so results are the same in every
// run. (cublasGemmGroupedBatchedEx takes extents from the host, which does not know them here.)
#pragma once
#include "ops/expert_linear/plain_product.h"
#include "ops/expert_linear/tile_product.h"
#include "ops/gelu/math.h"

namespace lancet::ops::device {

// With GELU, forward gives y = gelu(x w^T + b) and keeps the argument, and dx gives (dy w) * gelu'(argument).
enum class ExpertProduct {
  forward,  // c[r, width] = a[r, depth] b[width, depth]^T + bias      y = x w^T + b
  dx,       // c[r, width] = a[r, depth] b[depth, width]               dx = dy w
  dw        // c[height, width] = a[r, height]^T b[r, width], f32      dw = dy^T x, and db[height] = the sums of dy
};

// rows of expert e: e * buffer_rows + [filled[e, 0], filled[e, sources]), filled i32[experts, sources + 1].
template <class T>
struct GroupedOperands {
  const T *a, *b;
  const float* bias;  // [experts, width], or null
  void* c;            // T, of dw f32
  float* db;          // [experts, height] of dw
  const std::int32_t* filled;
  int experts, sources;
  std::int64_t buffer_rows;
  int height, width, depth;  // height: of dw; depth: of the others
  bool accumulate;           // dw and db are added to
  T* argument;               // GELU's, like c: of a forward product with GELU written, of dx read
};

// Where a tile lies: of which expert, at which row and column of its result, and the expert's filled rows.
struct GroupedTile {
  int expert, row, column;
  std::int64_t first_row;
  int rows;
};

// Gives a block its tiles: each `step`th of all experts' tiles, beginning with `next`.
class GroupedTiles {
 public:
  LANCET_DEVICE GroupedTiles(int next, int step) : next_(next), step_(step) {}

  // False when there are no more.
  template <ExpertProduct product, int tile_rows, int tile_columns, class T>
  LANCET_DEVICE bool take(const GroupedOperands<T>& p, GroupedTile& tile) {
    const int across = (p.width + tile_columns - 1) / tile_columns;
    for (; expert_ < p.experts; ++expert_) {
      const std::int32_t* range = p.filled + std::int64_t(expert_) * (p.sources + 1);
      const int begin = range[0], end = range[p.sources], rows = end > begin ? end - begin : 0;
      const int down = ((product == ExpertProduct::dw ? p.height : rows) + tile_rows - 1) / tile_rows;
      if (next_ - before_ < down * across) {
        place(next_ - before_, down, across, tile_rows, tile_columns, tile);
        tile.expert = expert_;
        tile.first_row = expert_ * p.buffer_rows + begin;
        tile.rows = rows;
        next_ += step_;
        return true;
      }
      before_ += down * across;
    }
    return false;
  }

 private:
  // Columns outermost within bands of eight tiles down: what runs at one time shares operands in the L2 cache.
  LANCET_DEVICE static void place(int index, int down, int across, int tile_rows, int tile_columns, GroupedTile& tile) {
    const int band = 8, first = index / (band * across) * band, height = down - first < band ? down - first : band;
    const int inside = index % (band * across);
    tile.row = (first + inside % height) * tile_rows;
    tile.column = inside / height * tile_columns;
  }

  int next_, step_;
  int expert_ = 0, before_ = 0;  // tiles of the experts before expert_
};

namespace detail {

struct alignas(16) Piece {
  bf16 values[8];
};

// A warp's 64x64 of a bf16 matrix: sixteen rows at a time go through shared memory, so that memory sees pieces of 16
// bytes. (All at once would take registers from the sums.)
struct WarpWindow {
  bf16* shared;   // of the warp
  bf16* outside;  // the lane's piece of row 0
  int width;      // of the matrix
  int rows;       // that count, from the first on
  bool there;     // the lane's columns

  LANCET_DEVICE WarpWindow(bf16* shared, bf16* matrix, const GroupedTile& tile, int width, int first_row,
                           int first_column, int warp_lane)
      : shared(shared),
        outside(matrix + (tile.first_row + first_row) * width + first_column + warp_lane % 8 * 8),
        width(width),
        rows(tile.rows - first_row),
        there(first_column + warp_lane % 8 * 8 < width) {}

  // Where the lane's pair of fragment (i, j) lies, in row 16 * i + 8 * half + g.
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
  LANCET_DEVICE void read(int i, int warp_lane) const {
#pragma unroll 2  // more take registers from the sums
    for (int row = 16 * i + warp_lane / 8; row < 16 * (i + 1); row += 4)
      if (row < rows && there)
        *piece(row, warp_lane) = *reinterpret_cast<const Piece*>(outside + std::int64_t(row) * width);
  }
};

// A warp's 64x64 of a tile, rounded to bf16. With GELU, sums and bias are its argument, or, of dx, are multiplied by
// its slope.
template <ExpertProduct product, bool with_gelu, class Block>
LANCET_DEVICE void store_rounded(Block& block, void* shared, const GroupedOperands<bf16>& p, GroupedTile tile,
                                 const TileSums& sums) {
  using S = TileShape;
  constexpr bool forward = product == ExpertProduct::forward;
  constexpr int window_size = S::warp_rows * S::warp_columns, warps = S::threads / warp_size;
  static_assert(2 * warps * window_size * int(sizeof(bf16)) <= S::shared_bytes);
  const int lane = block.warp_lane(), g = lane / 4, t = lane % 4;
  const int first_row = tile.row + warp_row(block.lane()), first_column = tile.column + warp_column(block.lane());
  bf16* stage = static_cast<bf16*>(shared) + block.warp() * window_size;
  const WarpWindow result(stage, static_cast<bf16*>(p.c), tile, p.width, first_row, first_column, lane);
  const WarpWindow argument(stage + warps * window_size, with_gelu ? p.argument : result.outside, tile, p.width,
                            first_row, first_column, lane);
  const float* bias = forward && p.bias ? p.bias + std::int64_t(tile.expert) * p.width : nullptr;
#pragma unroll
  for (int i = 0; i < S::fragments_down; ++i) {
    if constexpr (with_gelu && !forward) {
      argument.read(i, lane);
      block.sync_warp();
    }
#pragma unroll
    for (int j = 0; j < S::fragments_across; ++j) {
      const int column = first_column + 8 * j + 2 * t;
      float b[2] = {0.f, 0.f};
      if (bias && column < p.width) b[0] = bias[column], b[1] = bias[column + 1];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = sums.c[i][j][2 * half] + b[0], y = sums.c[i][j][2 * half + 1] + b[1];
        if constexpr (with_gelu && forward) {
          const bf16 pair[2] = {from_f32<bf16>(x), from_f32<bf16>(y)};
          memcpy(argument.pair(i, j, half, g, t), pair, 4);
          x = gelu(x), y = gelu(y);
        } else if constexpr (with_gelu) {
          bf16 pair[2];
          memcpy(pair, argument.pair(i, j, half, g, t), 4);
          x *= gelu_slope(to_f32(pair[0])), y *= gelu_slope(to_f32(pair[1]));
        }
        const bf16 pair[2] = {from_f32<bf16>(x), from_f32<bf16>(y)};
        memcpy(result.pair(i, j, half, g, t), pair, 4);
      }
    }
    block.sync_warp();
    result.write(i, lane);
    if constexpr (with_gelu && forward) argument.write(i, lane);
  }
  block.sync();  // the next tile's slices go there
}

template <class Block>
LANCET_DEVICE void store_gradient(Block& block, const GroupedOperands<bf16>& p, GroupedTile tile, const TileSums& sums,
                                  bool row_sums) {
  using S = TileShape;
  const int lane = block.warp_lane(), g = lane / 4, t = lane % 4;
  const int first_row = tile.row + warp_row(block.lane()), first_column = tile.column + warp_column(block.lane());
  struct alignas(8) Pair {
    float x, y;
  };
#pragma unroll
  for (int i = 0; i < S::fragments_down; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * i + 8 * half + g;
      if (row >= p.height) continue;
      const std::int64_t of_expert = std::int64_t(tile.expert) * p.height + row;
      float* c = static_cast<float*>(p.c) + of_expert * p.width;
#pragma unroll
      for (int j = 0; j < S::fragments_across; ++j) {
        const int column = first_column + 8 * j + 2 * t;
        if (column >= p.width) continue;
        Pair* at = reinterpret_cast<Pair*>(c + column);
        Pair sum{sums.c[i][j][2 * half], sums.c[i][j][2 * half + 1]};
        if (p.accumulate) sum = {at->x + sum.x, at->y + sum.y};
        *at = sum;
      }
      if (row_sums && t == 0) p.db[of_expert] = (p.accumulate ? p.db[of_expert] : 0.f) + sums.row_sums[i][2 * half];
    }
}

}  // namespace detail

// On tensor cores: width, height and depth are multiples of 8, all pointers aligned to 16 bytes.
template <ExpertProduct product, bool with_gelu = false>
struct GroupedTensorProduct {
  static constexpr int lanes = TileShape::threads;
  struct Shared {
    std::byte ring[TileShape::shared_bytes + 112];  // a block's shared memory is aligned to 16 bytes, the ring to 128
    // Which tile it is: here, since the sums leave no registers for it.
    GroupedTiles tiles;
    GroupedTile tile;
    bool more;
  };
  GroupedOperands<bf16> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    using S = TileShape;
    Shared& kept = block.template shared<Shared>();
    std::byte* shared = kept.ring + (128 - shared_address(kept.ring) % 128) % 128;
    if (block.lane() == 0) kept.tiles = GroupedTiles(int(block.index()), int(block.count()));
    while (true) {
      if (block.lane() == 0) kept.more = kept.tiles.template take<product, S::rows, S::columns>(p, kept.tile);
      block.sync();
      if (!kept.more) return;
      const GroupedTile tile = kept.tile;
      TileSums sums;
      if constexpr (product == ExpertProduct::dw) {
        const bf16 *a = p.a + tile.first_row * p.height, *b = p.b + tile.first_row * p.width;
        const bool row_sums = tile.column + warp_column(block.lane()) == 0;
        tile_product<Along::rows, Along::rows, true>(block, shared, {a + tile.row, p.height, p.height - tile.row},
                                                     {b + tile.column, p.width, p.width - tile.column}, tile.rows, sums,
                                                     row_sums);
        detail::store_gradient(block, p, kept.tile, sums, row_sums);
        block.sync();  // before the next tile's place is written
      } else {
        constexpr Along along_b = product == ExpertProduct::forward ? Along::k : Along::rows;
        const bf16* b = p.b + std::int64_t(tile.expert) * p.width * p.depth;
        const std::int64_t stride_b = along_b == Along::k ? p.depth : p.width;
        tile_product<Along::k, along_b, false>(
            block, shared, {p.a + (tile.first_row + tile.row) * p.depth, p.depth, tile.rows - tile.row},
            {b + (along_b == Along::k ? tile.column * stride_b : tile.column), stride_b, p.width - tile.column},
            p.depth, sums, false);
        detail::store_rounded<product, with_gelu>(block, shared, p, kept.tile, sums);
      }
    }
  }
};

// On ordinary arithmetic, for any extents.
template <class T, ExpertProduct product, bool with_gelu = false>
struct GroupedPlainProduct {
  static constexpr int lanes = PlainShape::threads;
  struct alignas(16) Shared {
    std::byte slices[PlainShape::shared_bytes];
  };
  GroupedOperands<T> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    using S = PlainShape;
    GroupedTiles tiles(int(block.index()), int(block.count()));
    GroupedTile tile;
    while (tiles.template take<product, S::rows, S::columns>(p, tile)) {
      PlainSums sums;
      if constexpr (product == ExpertProduct::dw) {
        plain_product<T>(block, block.shared_memory(),
                         {p.a + tile.first_row * p.height + tile.row, 1, p.height, p.height - tile.row},
                         {p.b + tile.first_row * p.width + tile.column, 1, p.width, p.width - tile.column}, tile.rows,
                         sums);
      } else {
        constexpr bool along_k = product == ExpertProduct::forward;
        const T* b = p.b + std::int64_t(tile.expert) * p.width * p.depth;
        const std::int64_t row_stride = along_k ? p.depth : 1, k_stride = along_k ? 1 : p.width;
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
    const int first_column = tile.column + plain_column(block.lane());
    for (int i = 0; i < PlainShape::each; ++i) {
      const int row = tile.row + plain_row(block.lane()) + i;
      if (row >= (product == ExpertProduct::dw ? p.height : tile.rows)) return;
      const std::int64_t of_all =
          product == ExpertProduct::dw ? std::int64_t(tile.expert) * p.height + row : tile.first_row + row;
      for (int j = 0; j < PlainShape::each && first_column + j < p.width; ++j) {
        const std::int64_t at = of_all * p.width + first_column + j;
        if constexpr (product == ExpertProduct::dw) {
          float* c = static_cast<float*>(p.c) + at;
          *c = (p.accumulate ? *c : 0.f) + sums.c[i][j];
        } else {
          const float bias = p.bias ? p.bias[std::int64_t(tile.expert) * p.width + first_column + j] : 0.f;
          float value = sums.c[i][j] + bias;
          if constexpr (with_gelu && product == ExpertProduct::forward) {
            p.argument[at] = from_f32<T>(value);
            value = gelu(value);
          } else if constexpr (with_gelu) {
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
