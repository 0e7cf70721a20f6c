// Shards of a dimension, as memory sees them. A dimension of blocks is split block by block (ir/sharding.h): of
// b x n x s elements, shard r of n has the elements [r * s, (r + 1) * s) of every block. With the dimensions before it
// and the blocks as rows, and s times the dimensions after it as a run, the whole tensor is [rows, n, run] and a shard
// is [rows, run]. Where blocks have unlike widths, a row is all of them: one after the other [n, width * run], of which
// a shard has [width * run].
#pragma once
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "lancet/base/shape.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

struct ShardLayout {
  std::int64_t shards = 1, rows = 1, run = 1;  // run: elements
  std::vector<std::int64_t> widths = {1};      // of the blocks of a row, in runs
  std::int64_t units() const { return std::accumulate(widths.begin(), widths.end(), std::int64_t{0}); }
  std::int64_t shard() const { return rows * units() * run; }
  bool is_contiguous() const { return rows == 1 && widths.size() == 1; }  // a shard's elements in the whole
};

// The dimension of an instruction that is split, by its attributes `axis` and `blocks` (default 1).
struct ShardedDimension {
  std::int64_t axis;
  ir::Blocks blocks;
  ShardedDimension(const ir::Attributes& attributes, std::string_view axis_name, std::string_view blocks_name)
      : axis(attributes.integer(axis_name)), blocks(attributes.blocks(blocks_name)) {}
  explicit ShardedDimension(const ir::Attributes& attributes) : ShardedDimension(attributes, "axis", "blocks") {}

  // The shape of all shards together, and that of one of them; empty if the dimension does not divide.
  std::optional<Shape> whole(Shape shard, std::int64_t shards) const {
    std::int64_t extent = 0;
    if (!fits(shard, 1) || shards < 1 || __builtin_mul_overflow(shard[int(axis)], shards, &extent)) return {};
    shard.set(int(axis), extent);
    return shard;
  }
  std::optional<Shape> shard(Shape whole, std::int64_t shards) const {
    if (!fits(whole, shards)) return {};
    whole.set(int(axis), whole[int(axis)] / shards);
    return whole;
  }
  ShardLayout layout(const Shape& whole, std::int64_t shards) const {
    ShardLayout layout{shards, blocks.widths.empty() ? blocks.units : 1, whole[int(axis)] / blocks.units / shards};
    if (!blocks.widths.empty()) layout.widths = blocks.widths;
    for (int i = 0; i < int(axis); ++i) layout.rows *= whole[i];
    for (int i = int(axis) + 1; i < whole.rank(); ++i) layout.run *= whole[i];
    return layout;
  }

 private:
  // A plan's text may name any numbers, so their products are not formed.
  bool fits(const Shape& shape, std::int64_t shards) const {
    if (axis < 0 || axis >= shape.rank() || shards < 1) return false;
    const std::int64_t extent = shape[int(axis)];
    const auto unit = blocks.unit_of(extent);
    return unit && *unit % shards == 0 && (blocks.units == 1 || blocks.units <= extent);
  }
};

// The place of the first element of a rank's piece, where n elements are cut in pieces for all ranks: a multiple of 64,
// so that pieces begin at whole cache lines.
inline std::int64_t piece_begin(std::int64_t n, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t piece = (n + ranks * 64 - 1) / (ranks * 64) * 64;
  return piece * rank < n ? piece * rank : n;
}

}  // namespace lancet::ops
