// Tensors spread over the ranks of a mesh, by definition: what an element of a shard is in the whole. In double.
#pragma once
#include <cmath>
#include <stdexcept>
#include <vector>

#include "lancet/ir/sharding.h"
#include "lancet/passes/reshard_steps.h"
#include "ops/references/reference_ops.h"

namespace lancet::test {

// Calls body(index) for every index of the shape, the last dimension fastest.
template <class Body>
void for_each_index(const Shape& shape, const Body& body) {
  std::vector<std::int64_t> index(std::size_t(shape.rank()));
  for (std::int64_t left = shape.elements(); left > 0; --left) {
    body(index);
    for (int d = shape.rank() - 1; d >= 0 && ++index[std::size_t(d)] == shape[d]; --d) index[std::size_t(d)] = 0;
  }
}

inline std::size_t offset_of(const Shape& shape, const std::vector<std::int64_t>& index) {
  std::int64_t at = 0;
  for (int d = 0; d < shape.rank(); ++d) at = at * shape[d] + index[std::size_t(d)];
  return std::size_t(at);
}

// Element i of shard `place` of `shards`, which split each block of `extent` elements: its place in all.
inline std::int64_t in_whole(std::int64_t i, std::int64_t extent, std::int64_t shards, std::int64_t place,
                             const ir::Blocks& blocks) {
  std::int64_t begin = 0;  // of a block in all; i counts from its shard's begin
  for (std::int64_t b = 0;; ++b) {
    const std::int64_t of_block = extent / blocks.units * blocks.width(b), of_shard = of_block / shards;
    if (i < of_shard) return begin + place * of_shard + i;
    begin += of_block;
    i -= of_shard;
  }
}

// Which element of the whole tensor a rank's element is.
inline std::vector<std::int64_t> index_in_whole(std::vector<std::int64_t> index, const Shape& whole,
                                                const ir::Sharding& sharding, const ir::Mesh& mesh, int rank) {
  for (int d = 0; d < whole.rank(); ++d) {
    const ir::Split& split = sharding.dimensions[std::size_t(d)];
    std::int64_t shards = 1, place = 0;
    for (const ir::Axis axis : split.axes) {
      shards *= mesh[axis];
      place = place * mesh[axis] + mesh.coordinate(rank, axis);
    }
    index[std::size_t(d)] = in_whole(index[std::size_t(d)], whole[d], shards, place, split.blocks);
  }
  return index;
}

inline Shape local_shape(const Shape& whole, const ir::Sharding& sharding, const ir::Mesh& mesh) {
  Shape shape = whole;
  for (int d = 0; d < whole.rank(); ++d)
    for (const ir::Axis axis : sharding.dimensions[std::size_t(d)].axes) shape.set(d, shape[d] / mesh[axis]);
  return shape;
}

// What each rank holds. Partial sums are random, and the last rank of a group has the rest.
inline std::vector<DoubleTensor> spread(const DoubleTensor& whole, const ir::Sharding& sharding, const ir::Mesh& mesh) {
  const Shape shape = local_shape(whole.shape(), sharding, mesh);
  const int summands = mesh.size(sharding.partial);
  auto noise = [](int place, std::size_t at) { return double((std::size_t(place) * 7919 + at * 104729) % 16) - 8; };
  std::vector<DoubleTensor> ranks(std::size_t(mesh.ranks()), {{whole.type.dtype, shape}, {}});
  for (int rank = 0; rank < mesh.ranks(); ++rank)
    for_each_index(shape, [&](const auto& index) {
      const std::size_t at = offset_of(whole.shape(), index_in_whole(index, whole.shape(), sharding, mesh, rank));
      const int place = mesh.place(rank, sharding.partial);
      double value = noise(place, at);
      if (place == summands - 1) {
        value = whole.values[at];
        for (int other = 0; other < place; ++other) value -= noise(other, at);
      }
      ranks[std::size_t(rank)].values.push_back(value);
    });
  return ranks;
}

// The number of elements of all ranks that are further than `tolerance`, of 1 and of the value, from what they should
// be; -1: of another shape.
inline int wrong_elements(const std::vector<DoubleTensor>& ranks, const DoubleTensor& whole,
                          const ir::Sharding& sharding, const ir::Mesh& mesh, double tolerance = 0) {
  int wrong = 0;
  const Shape shape = local_shape(whole.shape(), sharding, mesh);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    if (ranks[std::size_t(rank)].shape() != shape) return -1;
    const auto group = mesh.group(rank, sharding.partial);
    for_each_index(shape, [&](const auto& index) {
      double sum = 0;
      for (const int other : group) sum += ranks[std::size_t(other)].values[offset_of(shape, index)];
      const auto in_all = index_in_whole(index, whole.shape(), sharding, mesh, rank);
      const double expected = whole.values[offset_of(whole.shape(), in_all)];
      const bool unwritten = std::isnan(expected) && std::isnan(sum);
      wrong += !unwritten && !(std::abs(sum - expected) <= tolerance * (1 + std::abs(expected)));
    });
  }
  return wrong;
}

// Where element `index` of a rank's result of a step comes from: a rank, and `index` in its operand.
inline int source_of(const passes::Reshard& step, const ir::Mesh& mesh, int rank, std::vector<std::int64_t>& index) {
  if (step.to >= 0) {
    const auto d = std::size_t(step.to);
    const int place = mesh.place(rank, step.axes);
    index[d] = in_whole(index[d], step.before.shape[step.to], step.ranks, place, step.to_blocks);
  }
  if (step.from < 0) return rank;
  const auto d = std::size_t(step.from);
  const std::int64_t extent = step.after.shape[step.from];
  for (std::int64_t place = 0; place < step.ranks; ++place)
    for (std::int64_t i = 0; i < extent / step.ranks; ++i)
      if (in_whole(i, extent, step.ranks, place, step.from_blocks) == index[d]) {
        index[d] = i;
        return mesh.group(rank, step.axes)[std::size_t(place)];
      }
  throw std::logic_error("an index of no rank");
}

// What each rank holds after a step.
inline std::vector<DoubleTensor> apply(const passes::Reshard& step, const std::vector<DoubleTensor>& before,
                                       const ir::Mesh& mesh) {
  using Kind = passes::Reshard::Kind;
  const bool sums = step.kind == Kind::sum_shards || step.kind == Kind::reduce_scatter;
  std::vector<DoubleTensor> after(before.size(), {step.after, {}});
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const auto group = mesh.group(rank, step.axes);
    const bool is_zero = step.kind == Kind::one_summand && group[0] != rank;
    for_each_index(step.after.shape, [&](std::vector<std::int64_t> index) {
      const int source = source_of(step, mesh, rank, index);
      const std::size_t at = offset_of(step.before.shape, index);
      double value = is_zero ? 0 : before[std::size_t(source)].values[at];
      if (sums)
        for (const int other : group) value += other == rank ? 0 : before[std::size_t(other)].values[at];
      after[std::size_t(rank)].values.push_back(value);
    });
  }
  return after;
}

}  // namespace lancet::test
