// The tiles that blocks find in a list of tiles (GroupedTiles, OrderedTiles).
#pragma once
#include <vector>

#include "emulated_kernels.h"
#include "ops/expert_linear/grouped_tiles.h"

namespace lancet::test {

// Block b of n finds the tiles b, b + n, ... and lists them once all threads of its warp agree.
template <class Tiles, ops::device::ExpertProduct product, int tile_rows, int tile_columns, class T>
struct ListTiles {
  static constexpr int threads = 32;
  Tiles tiles;
  ops::device::GroupedOperands<T> p;
  std::vector<ops::device::GroupedTile>* list;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ops::device::GroupedTile tile;
    for (int index = int(block.index()); tiles.template find<product, tile_rows, tile_columns>(block, p, index, tile);
         index += int(block.count())) {
      for (const int field : {tile.expert, tile.row, tile.column, tile.rows, int(tile.first_row)})
        LANCET_CHECK(block.shuffle(field, 0) == field, "tile {}: threads of a warp differ", index);
      if (block.thread() == 0) list->push_back(tile);
    }
  }
};

template <ops::device::ExpertProduct product, int tile_rows, int tile_columns, class Tiles, class T>
std::vector<ops::device::GroupedTile> list_tiles(const Tiles& tiles, const ops::device::GroupedOperands<T>& p,
                                                 std::int64_t blocks) {
  std::vector<ops::device::GroupedTile> list;
  HostStream stream;
  const ListTiles<Tiles, product, tile_rows, tile_columns, T> kernel{tiles, p, &list};
  LANCET_CHECK(ops::device::launch(stream, blocks, kernel).ok(), "a launch failed");
  return list;
}

}  // namespace lancet::test
