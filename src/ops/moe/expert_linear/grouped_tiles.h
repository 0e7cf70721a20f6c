// Operands of the products over experts' filled rows, and the list of tiles that the filled rows make.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/device/launch.h"

namespace lancet::ops::device {

// With GELU, forward gives y = gelu(x w^T + b) and keeps the argument, and dx gives (dy w) * gelu'(argument).
enum class ExpertProduct {
  forward,  // c[r, width] = a[r, depth] b[width, depth]^T + bias      y = x w^T + b
  dx,       // c[r, width] = a[r, depth] b[depth, width]               dx = dy w
  dw        // c[height, width] = a[r, height]^T b[r, width], f32      dw = dy^T x, and db[height] = the sums of dy
};

// What becomes of the sums of forward and dx. gelu: as above.
enum class Epilogue { round, gelu };

// rows of expert e: e * buffer_rows + [filled[e, 0], filled[e, sources]), filled i32[experts, sources + 1].
template <class T>
struct GroupedOperands {
  const T *a, *b;
  const float* bias;  // [experts, width], or null
  void* c;            // T, or f32 for dw
  float* db;          // dw only: [experts, height], or null
  const std::int32_t* filled;
  int experts, sources;
  std::int64_t buffer_rows;
  int height, width, depth;  // height for dw, depth for the others
  int all_columns;  // forward, dx: of b and bias, of which c has `width`; b and bias begin at the first of them
  bool accumulate;  // add onto dw and db
  int quartered;    // dw: of the last tiles, each of which takes four places in the list, a quarter each
  T* argument;      // of GELU, shaped like c: forward with GELU writes it, dx reads it
};

// A tile: its expert, its row and column within the expert's result, and the expert's filled rows.
struct GroupedTile {
  int expert, row, column;
  std::int64_t first_row;
  int rows;
  bool quarter;  // dw: of a tile, from this row and column on
};

// The number of blocks for at most `most_tiles` tiles: one per tile, so that the GPU balances tiles as blocks end, and
// kernels of other streams (messages, flags) get registers between two blocks, of which only one or two fit a
// multiprocessor. Buffers are seldom full; a block without a tile ends at once, but its launch takes time. So there are
// at most as many blocks as the device runs in 31 rounds of two a multiprocessor; they share the tiles if there are
// more.
inline std::int64_t blocks_of_tiles(std::int64_t most_tiles, const backend::DeviceTraits& device) {
  return std::min<std::int64_t>(most_tiles, 31 * 2 * device.multiprocessors);
}

// How many of the last of dw's tiles are computed as four quarters: those beyond full rounds of one tile a
// multiprocessor, if all their quarters run at once (two blocks a multiprocessor). Two experts of 768 x 3072 have 288
// tiles, so on 132 multiprocessors the last 24 would take a round of their own, of more than half of the time that the
// other 264 take. Each element is still one sum in the order of the rows: no bit depends on it.
inline int quartered_tiles(std::int64_t tiles, const backend::DeviceTraits& device) {
  const std::int64_t last = tiles % device.multiprocessors;
  return 4 * last <= 2 * device.multiprocessors ? int(last) : 0;
}

// Sets the row and column of tile `index` of `down` x `across`. Numbers tiles column by column within bands of eight
// tiles down, so that concurrent tiles share operands in the L2.
LANCET_DEVICE void place_tile(int index, int down, int across, int tile_rows, int tile_columns, GroupedTile& tile) {
  const int band = 8, first = index / (band * across) * band, height = down - first < band ? down - first : band;
  const int inside = index % (band * across);
  tile.row = (first + inside % height) * tile_rows;
  tile.column = inside / height * tile_columns;
}

// Finds the group that tile `index` of a list belongs to, and makes `index` the tile's among those of its group; false
// if the list ends before it. The list has the tiles of groups 0, 1, ... one after the other, tiles_of(g) of group g.
// All threads of a warp call it with the same arguments. Each counts the tiles of one of 32 groups, so that the loads
// of their counts do not wait for each other.
template <class Block, class TilesOf>
LANCET_DEVICE bool find_group(Block& block, int groups, const TilesOf& tiles_of, int& index, int& group) {
  for (int first = 0; first < groups; first += warp_size) {
    const int mine = first + block.warp_lane(), tiles = mine < groups ? tiles_of(mine) : 0;
    const int up_to = block.warp_scan(tiles), below = block.warp_count(up_to <= index);
    if (below < warp_size) {
      group = first + below;
      index -= block.shuffle(up_to - tiles, below);
      return true;
    }
    index -= block.shuffle(up_to, warp_size - 1);
  }
  return false;
}

// The list of all experts' tiles, expert after expert.
struct GroupedTiles {
  // Sets `tile` to number `index` of the list; false if the list is shorter. All threads of a warp call it; `tile` may
  // be the same for all of them, in shared memory.
  template <ExpertProduct product, int tile_rows, int tile_columns, class Block, class T>
  LANCET_DEVICE bool find(Block& block, const GroupedOperands<T>& p, int index, GroupedTile& tile) const {
    const int across = (p.width + tile_columns - 1) / tile_columns;
    const auto begin = [&](int expert) { return p.filled[std::int64_t(expert) * (p.sources + 1)]; };
    const auto rows = [&](int expert) {
      const int count = p.filled[std::int64_t(expert) * (p.sources + 1) + p.sources] - begin(expert);
      return count > 0 ? count : 0;
    };
    if constexpr (product == ExpertProduct::dw) {  // all experts have as many tiles
      const int down = (p.height + tile_rows - 1) / tile_rows, of_expert = down * across;
      const int quarter = index - (p.experts * of_expert - p.quartered);
      if (quarter >= 0) index -= quarter - quarter / 4;
      if (index >= p.experts * of_expert) return false;
      GroupedTile place;
      place_tile(index % of_expert, down, across, tile_rows, tile_columns, place);
      tile.expert = index / of_expert;
      tile.quarter = quarter >= 0;
      tile.row = place.row + (quarter >= 0 ? quarter % 4 / 2 * (tile_rows / 2) : 0);
      tile.column = place.column + (quarter >= 0 ? quarter % 2 * (tile_columns / 2) : 0);
    } else {
      const auto down = [&](int expert) { return (rows(expert) + tile_rows - 1) / tile_rows; };
      const auto tiles_of = [&](int expert) { return down(expert) * across; };
      if (!find_group(block, p.experts, tiles_of, index, tile.expert)) return false;
      place_tile(index, down(tile.expert), across, tile_rows, tile_columns, tile);
    }
    tile.first_row = tile.expert * p.buffer_rows + begin(tile.expert);
    tile.rows = rows(tile.expert);
    return true;
  }
};

}  // namespace lancet::ops::device
