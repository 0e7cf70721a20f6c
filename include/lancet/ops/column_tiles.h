// Tiles of a tensor's columns (its last axis), and the attribute that names the op which several instructions make up.
#pragma once
#include <cstdint>

#include "lancet/ir/program.h"

namespace lancet::ops {

struct ColumnTile {
  std::int64_t first, columns;
};

// Tile `part` of `parts` of `width` columns, of which there are at least `parts`. Tiles are equal if their number
// divides the width. Otherwise they begin at multiples of 8 columns, so that rows of 16-bit numbers stay aligned to 16
// bytes; with fewer than 8 columns a tile, at any column. No tile is empty.
constexpr ColumnTile column_tile(std::int64_t width, std::int64_t part, std::int64_t parts) {
  const std::int64_t unit = width % parts == 0 || width < 8 * parts ? 1 : 8;
  const auto begin = [&](std::int64_t p) { return p == parts ? width : width * p / parts / unit * unit; };
  return {begin(part), begin(part + 1) - begin(part)};
}

// True if the attributes part and parts name a tile of that width.
inline bool is_column_tile(const ir::Attributes& attributes, std::int64_t width) {
  const std::int64_t part = attributes.integer("part", 0), parts = attributes.integer("parts", 1);
  return part >= 0 && part < parts && parts <= width;
}
inline ColumnTile column_tile(const ir::Attributes& attributes, std::int64_t width) {
  return column_tile(width, attributes.integer("part", 0), attributes.integer("parts", 1));
}

}  // namespace lancet::ops
