// Tiles of the filled rows in an order that follows the ranks that the rows come from, or go back to.
//
// The distance of rank s from this rank r, of W ranks, is (s - r) mod W: 0 for this rank's own rows. Ranks of a window
// reach each other equally well, so a rotation serves each link alike. A tile may hold rows of several ranks; the
// farthest decides. With arrivals first, a tile comes once the rows of all ranks up to some distance are there. With
// the farthest first, the order is reversed, and the rows of a rank are complete once the tiles up to its distance are.
// The tiles are those of GroupedTiles, so that the order changes no value.
//
// The rows of an expert are those of rank 0, 1, ... one after the other. So, in the order of arrival, the tiles of an
// expert begin with the first that holds no row of a lower rank than r, go on to the last, and then from tile 0 to
// where they began. How many are there once the rows up to a distance are follows from one entry of `filled`.
#pragma once
#include "grouped_tiles.h"

namespace lancet::ops::device {

enum class TileOrder {
  arrival,  // tiles of the nearest ranks first: for rows that arrive, this rank's own at once
  farthest  // tiles of the farthest ranks first: for rows that are sent back
};

// The tiles of a block: every `step`th tile of all experts, beginning with `next`, in the order for rank `rank` of the
// sources. Not for dw, whose tiles are no ranges of rows.
template <TileOrder order>
class OrderedTiles {
 public:
  LANCET_DEVICE OrderedTiles(int next, int step, int rank) : next_(next), step_(step), rank_(rank) {}

  // As GroupedTiles::take().
  template <ExpertProduct product, int tile_rows, int tile_columns, class T>
  LANCET_DEVICE bool take(const GroupedOperands<T>& p, GroupedTile& tile) {
    static_assert(product != ExpertProduct::dw);
    const int across = (p.width + tile_columns - 1) / tile_columns;
    for (; group_ < p.sources * p.experts; ++group_) {
      const int turn = group_ / p.experts, expert = group_ % p.experts;
      const int distance = order == TileOrder::arrival ? turn : p.sources - 1 - turn;
      const Rows rows{p.filled + std::int64_t(expert) * (p.sources + 1), p.sources, rank_, tile_rows};
      const int before = distance == 0 ? 0 : rows.complete(distance - 1), down = rows.complete(distance) - before;
      if (next_ - before_ < down * across) {
        place_tile(next_ - before_, down, across, tile_rows, tile_columns, tile);
        tile.row = rows.in_order(before + tile.row / tile_rows) * tile_rows;
        tile.expert = expert;
        tile.first_row = expert * p.buffer_rows + rows.filled[0];
        tile.rows = rows.count();
        next_ += step_;
        return true;
      }
      before_ += down * across;
    }
    return false;
  }

 private:
  // The rows of one expert, in tiles.
  struct Rows {
    const std::int32_t* filled;  // [sources + 1]
    int sources, rank, tile_rows;

    LANCET_DEVICE int count() const { return filled[sources] > filled[0] ? filled[sources] - filled[0] : 0; }
    LANCET_DEVICE int tiles() const { return (count() + tile_rows - 1) / tile_rows; }
    // The first tile without a row of a lower rank.
    LANCET_DEVICE int first() const { return (filled[rank] - filled[0] + tile_rows - 1) / tile_rows; }
    // How many tiles hold only rows of ranks up to this distance: of those from `rank` on up to `end`, or of those and
    // of the ranks below `end`.
    LANCET_DEVICE int complete(int distance) const {
      const int next = rank + distance + 1, end = next > sources ? next - sources : next;
      const int whole = (filled[end] - filled[0]) / tile_rows;
      if (end <= rank) return filled[end] == filled[rank] ? tiles() : tiles() - first() + whole;
      const int up_to = filled[end] == filled[sources] ? tiles() : whole;
      return up_to > first() ? up_to - first() : 0;
    }
    LANCET_DEVICE int in_order(int i) const {
      const int tile = first() + i;
      return tile < tiles() ? tile : tile - tiles();
    }
  };

  int next_, step_, rank_;
  int group_ = 0, before_ = 0;  // before_: number of tiles of the groups (distance, expert) before group_
};

}  // namespace lancet::ops::device
