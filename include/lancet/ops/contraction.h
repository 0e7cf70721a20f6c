// Products that add up tiles of the columns which they sum over (src/ops/expert_sums).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lancet/ops/op.h"

namespace lancet::ops {

// How an op's product is made of tiles of operand 0's columns.
struct Contraction {
  std::string_view sums;      // the op of a tile, whose result is f32 sums in the memory of the last operand; or empty
  std::vector<int> operands;  // those of the op that `sums` takes, in its order; the last says which rows are filled
  std::string_view reader;    // of a fused op: what it does to the whole sums; or empty
  bool backward = false;      // the reader takes the fused op's operand 2, and works in the memory of the sums
};
Contraction contraction_of(std::string_view op);

// What such a tile, and what follows the last one, are of: the op that they make up.
inline constexpr std::string_view tile_of = "of";

}  // namespace lancet::ops
