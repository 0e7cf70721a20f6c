// Sharding: how a tensor of the logical Program is spread over a mesh (GShard, section 3.3).
//
// A dimension is split by axes, outermost first: 64{data,expert} on a mesh of data 2 and expert 4 is eight shards of 8,
// and shard 5 is on the ranks with the coordinates data 1, expert 1. A dimension that is several things side by side is
// split block by block: 3x256{tensor} has the 768 features of queries, keys and values, and each rank has a share of
// all three. A tensor that is partial over axes is the sum of the tensors on the ranks of one group of these axes.
// Axes that are named nowhere hold copies. No axis is named twice, neither by two dimensions nor by one and `partial`.
//     bf16[64{data,expert},512,768]      f32[3072{tensor},768] partial{data,expert}      f32[4+1+1x256{tensor}]
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/flat_shard.h"
#include "lancet/base/result.h"
#include "lancet/base/shape.h"
#include "lancet/ir/mesh.h"

namespace lancet::ir {

// Blocks side by side in a dimension, counted in units of one extent: `units` blocks of a unit each, or blocks of
// unlike widths. The text is "3" or "4+1+1".
struct Blocks {
  std::int64_t units = 1;
  std::vector<std::int64_t> widths = {};  // in units, whose sum they are; unlike and without a common factor, or none

  Blocks(std::int64_t equal = 1) : units(equal) {}     // NOLINT(google-explicit-constructor): most blocks are equal
  static Blocks of(std::vector<std::int64_t> widths);  // relative ones of at least 1, at least one of them
  std::int64_t count() const { return widths.empty() ? units : std::int64_t(widths.size()); }
  std::int64_t width(std::int64_t block) const { return widths.empty() ? 1 : widths[std::size_t(block)]; }
  // The extent of a unit in a dimension; none if the blocks do not divide it.
  std::optional<std::int64_t> unit_of(std::int64_t extent) const {
    return units < 1 || extent % units != 0 ? std::nullopt : std::optional(extent / units);
  }
  friend auto operator<=>(const Blocks&, const Blocks&) = default;
};
std::string to_string(const Blocks& blocks);
// What to_string() writes for blocks of at least one unit; none for any other text.
std::optional<Blocks> parse_blocks(std::string_view text);

struct Split {
  std::vector<Axis> axes = {};  // outermost first; empty: the dimension is whole
  Blocks blocks = {};           // 1 where axes is empty
  friend bool operator==(const Split&, const Split&) = default;
};

struct Sharding {
  std::vector<Split> dimensions = {};  // one for each dimension of the shape
  Axes partial = {};

  static Sharding whole(std::size_t dimensions) { return {std::vector<Split>(dimensions), {}}; }
  bool is_whole() const;  // no axis is named
  Axes used() const;      // all axes that are named
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

// One dimension as the text has it: "64{data,expert}", "3x256{tensor}", "4+1+1x256{tensor}"; "512" where it is whole.
struct Dimension {
  std::int64_t extent = 0;
  Split split = {};
  friend bool operator==(const Dimension&, const Dimension&) = default;
};
std::string to_string(const Dimension& dimension);
// What to_string() writes for an extent of at least 0 and any split; none for any other text.
std::optional<Dimension> parse_dimension(std::string_view text);

// "64{data,expert},512,768 partial{tensor}"; " whole" follows the extents if no axis is named.
std::string to_string(const Shape& shape, const Sharding& sharding);

// Success if the sharding fits the shape on some mesh. Errors (ExitCode::config) say which dimension or axis does not.
Status check(const Shape& shape, const Sharding& sharding);

// The shape of each rank's shard. Errors (ExitCode::config): those of check(), and a dimension that its axes do not
// divide, or whose blocks they do not, with its number, the axes and both numbers.
Result<Shape> shard_shape(const Shape& shape, const Sharding& sharding, const Mesh& mesh);

// The inverse: the shape of which each rank has a shard of this one.
Shape whole_shape(const Shape& shard, const Sharding& sharding, const Mesh& mesh);

// The axes along which ranks hold the same part of a tensor: all that its sharding does not name. Without a sharding,
// all axes.
Axes holders(const std::optional<Sharding>& sharding);

// The shards in which the axes split a dimension: the product of their sizes.
std::int64_t shards(const Split& split, const Mesh& mesh);
// True if the axes divide the dimension, each of its blocks for itself.
bool divides(const Dimension& dimension, const Mesh& mesh);

// Which elements of a tensor a rank holds, as runs of neighbours. Elements are counted row-major.
//
// A dimension that is split gives the rank one segment of it, or one of each block; a run is what these segments leave
// contiguous in the whole tensor. There is one run where all dimensions but the first are whole; f32[768,3072{tensor}]
// has one for each of its 768 rows. All work here is by runs.

// The elements [whole, whole + count) of the whole tensor are the elements [held, held + count) of the rank's shard.
struct HeldRun {
  std::int64_t whole = 0, held = 0, count = 0;
  friend bool operator==(const HeldRun&, const HeldRun&) = default;
};

// The runs of a rank's shard, in the order of `held`, which is that of `whole`, too. Neighbours are one run. Without a
// sharding the rank holds all elements. InternalError: the sharding does not split that shape on the mesh.
std::vector<HeldRun> held_elements(const Shape& whole, const std::optional<Sharding>& sharding, const Mesh& mesh,
                                   int rank);

// What is left of runs in order of which only the elements [begin, end) of the shard are held (a flat shard), with
// `held` counted from `begin` on.
std::vector<HeldRun> of_held(const std::vector<HeldRun>& runs, const FlatRange& range);

// The part of the runs that is in the elements [begin, end) of the whole tensor. It is contiguous in the shard.
std::vector<HeldRun> of_whole(const std::vector<HeldRun>& runs, const FlatRange& range);

std::int64_t elements_of(const std::vector<HeldRun>& runs);

}  // namespace lancet::ir
