// The product whose result is sent back makes it in tiles of columns, over all its experts' rows: each a dense tensor
// of its own. The product reads the columns of its weights where they are (OpDef::column_tiles). A tile is sent as soon
// as it is made and arrives as a dense tensor, which place_columns copies into the whole.
#include <algorithm>

#include "schedule/cuts/cuts.h"

namespace lancet::schedule {
namespace {

using ops::last, ops::none;

const ops::PartitionRow product_row{{none, none, none, none}, {last}, ops::SplitIn::time};
const ops::PartitionRow all_to_all_row{{last, none, none}, {last}, ops::SplitIn::time};

AxisRows column_rows(const ir::Program& program) {
  AxisRows rows(program.instructions.size());
  for (const ColumnPair& pair : column_pairs(program)) {
    rows[pair.product] = &product_row;
    rows[pair.all_to_all] = &all_to_all_row;
  }
  return rows;
}

std::vector<int> that_divide_features(const ir::Program& program, const AxisRows& rows, const TokenRanks&,
                                      std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i])
      std::erase_if(counts, [&](int parts) {
        return program.type(program.instructions[i].results[0]).shape.back() % parts != 0;
      });
  return counts;
}

}  // namespace

const Cut& columns_cut() {
  static const Cut cut{
      .name = "columns",
      .words = {.parts = "tiles of columns",
                .splits = "features that the experts' last product makes, in equal tiles over all their rows",
                .pairs = "the product whose result is sent back, and that all-to-all; both passes",
                .rewrites = "the product's attribute columns; place_columns puts tiles that arrived in their place",
                .memory = "the tiles that arrived and are not yet in their place; at most the whole once more",
                .launches = "one product, message and copy a tile",
                .source = "Comet (Zhang et al., MLSys 2025), section 3.1.2, layer 1"},
      .rows = column_rows,
      .part_counts = that_divide_features};
  return cut;
}

}  // namespace lancet::schedule
