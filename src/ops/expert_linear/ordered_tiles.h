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

// The list of all experts' tiles in the order for rank `rank` of the sources. Not for dw, whose tiles are no ranges of
// rows.
template <TileOrder order>
struct OrderedTiles {
  int rank;

  // As GroupedTiles::find().
  template <ExpertProduct product, int tile_rows, int tile_columns, class Block, class T>
  LANCET_DEVICE bool find(Block& block, const GroupedOperands<T>& p, int index, GroupedTile& tile) const {
    static_assert(product != ExpertProduct::dw);
    const int across = (p.width + tile_columns - 1) / tile_columns;
    // A group is an expert's tiles of a distance: those that the tiles of smaller distances leave.
    const auto distance_of = [&](int group) {
      return order == TileOrder::arrival ? group / p.experts : p.sources - 1 - group / p.experts;
    };
    const auto rows_of = [&](int group) {
      return Rows{p.filled + std::int64_t(group % p.experts) * (p.sources + 1), p.sources, rank, tile_rows};
    };
    const auto before = [&](int group) {
      const int distance = distance_of(group);
      return distance == 0 ? 0 : rows_of(group).complete(distance - 1);
    };
    const auto down = [&](int group) { return rows_of(group).complete(distance_of(group)) - before(group); };
    const auto tiles_of = [&](int group) { return down(group) * across; };
    int group = 0;
    if (!find_group(block, p.sources * p.experts, tiles_of, index, group)) return false;
    GroupedTile place;
    place_tile(index, down(group), across, tile_rows, tile_columns, place);
    const Rows rows = rows_of(group);
    tile.row = rows.in_order(before(group) + place.row / tile_rows) * tile_rows;
    tile.column = place.column;
    tile.expert = group % p.experts;
    tile.first_row = tile.expert * p.buffer_rows + rows.filled[0];
    tile.rows = rows.count();
    return true;
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
};

}  // namespace lancet::ops::device
