// Shards of a dimension, as memory sees them. A dimension of b blocks is split block by block (ir/sharding.h): of
// b x n x s elements, shard r of n has the elements [r * s, (r + 1) * s) of every block. With the dimensions before it
// and the blocks as rows, and s times the dimensions after it as a run, the whole tensor is [rows, n, run] and a shard
// is [rows, run].
#pragma once
#include <optional>
#include <string_view>

#include "lancet/base/shape.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

struct ShardLayout {
  std::int64_t shards = 1, rows = 1, run = 1;  // run: elements
  std::int64_t shard() const { return rows * run; }
};

// The dimension of an instruction that is split, by its attributes `axis` and `blocks` (default 1).
struct ShardedDimension {
  std::int64_t axis, blocks;
  ShardedDimension(const ir::Attributes& attributes, std::string_view axis_name, std::string_view blocks_name)
      : axis(attributes.integer(axis_name)), blocks(attributes.integer(blocks_name, 1)) {}
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
    ShardLayout layout{shards, blocks, whole[int(axis)] / blocks / shards};
    for (int i = 0; i < int(axis); ++i) layout.rows *= whole[i];
    for (int i = int(axis) + 1; i < whole.rank(); ++i) layout.run *= whole[i];
    return layout;
  }

 private:
  // A plan's text may name any numbers, so their products are not formed.
  bool fits(const Shape& shape, std::int64_t shards) const {
    if (axis < 0 || axis >= shape.rank() || blocks < 1 || shards < 1) return false;
    const std::int64_t extent = shape[int(axis)];
    return extent % blocks == 0 && extent / blocks % shards == 0 && (blocks == 1 || blocks <= extent);
  }
};

// The place of the first element of a rank's piece, where n elements are cut in pieces for all ranks: a multiple of 64,
// so that pieces begin at whole cache lines.
inline std::int64_t piece_begin(std::int64_t n, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t piece = (n + ranks * 64 - 1) / (ranks * 64) * 64;
  return piece * rank < n ? piece * rank : n;
}

}  // namespace lancet::ops
