// The runs are built from the last dimension to the first: those of a row of the dimensions behind are repeated at each
// index that the rank holds of the dimension. As long as a row is whole, a segment of indices is a single run.
#include "lancet/ir/held_elements.h"

#include <algorithm>

namespace lancet::ir {
namespace {

// The number of the rank's shard among those of a dimension: the axes of a split need not be in the mesh's order.
std::int64_t shard_number(const Split& split, const Mesh& mesh, int rank) {
  std::int64_t number = 0;
  for (const Axis axis : split.axes) number = number * mesh[axis] + mesh.coordinate(rank, axis);
  return number;
}

// Appends elements behind those that are held already.
void append(std::vector<HeldRun>& runs, std::int64_t whole, std::int64_t count) {
  if (count == 0) return;
  if (!runs.empty() && runs.back().whole + runs.back().count == whole) {
    runs.back().count += count;
    return;
  }
  runs.push_back({whole, runs.empty() ? 0 : runs.back().held + runs.back().count, count});
}

// The indices of a dimension that the rank holds, as runs.
std::vector<HeldRun> held_indices(std::int64_t extent, const Split& split, const Mesh& mesh, int rank) {
  const std::int64_t block = extent / split.blocks, shard = block / shards(split, mesh),
                     first = shard_number(split, mesh, rank) * shard;
  std::vector<HeldRun> indices;
  for (std::int64_t b = 0; b < split.blocks; ++b) append(indices, b * block + first, shard);
  return indices;
}

}  // namespace

std::vector<HeldRun> held_elements(const Shape& whole, const std::optional<Sharding>& sharding, const Mesh& mesh,
                                   int rank) {
  if (sharding) {
    const auto shard = shard_shape(whole, *sharding, mesh);
    LANCET_CHECK(shard.ok(), "a tensor of [{}]: {}", to_string(whole), shard.error().message);
  }
  std::vector<HeldRun> runs{{0, 0, 1}};  // of a row of the dimensions behind
  std::int64_t row = 1;                  // its elements
  for (int d = whole.rank() - 1; d >= 0; --d) {
    const Split split = sharding ? sharding->dimensions[std::size_t(d)] : Split{};
    const bool is_whole_row = runs.size() == 1 && runs[0].count == row;
    std::vector<HeldRun> next;
    for (const HeldRun& indices : held_indices(whole[d], split, mesh, rank)) {
      if (is_whole_row) {
        append(next, indices.whole * row, indices.count * row);
        continue;
      }
      for (std::int64_t i = indices.whole; i < indices.whole + indices.count; ++i)
        for (const HeldRun& run : runs) append(next, i * row + run.whole, run.count);
    }
    runs = std::move(next);
    row *= whole[d];
  }
  return runs;
}

namespace {

// The runs cut to the range of the counter `first` (whole or held).
std::vector<HeldRun> intersect(const std::vector<HeldRun>& runs, std::int64_t HeldRun::*first, const FlatRange& range) {
  std::vector<HeldRun> inside;
  auto at = std::ranges::upper_bound(runs, range.begin, {}, first);
  if (at != runs.begin()) --at;  // the run before may reach into the range
  for (; at != runs.end() && (*at).*first < range.end; ++at) {
    const std::int64_t skipped = std::max<std::int64_t>(0, range.begin - (*at).*first),
                       end = std::min(at->count, range.end - (*at).*first);
    if (skipped < end) inside.push_back({at->whole + skipped, at->held + skipped, end - skipped});
  }
  return inside;
}

}  // namespace

std::vector<HeldRun> of_held(const std::vector<HeldRun>& runs, const FlatRange& range) {
  std::vector<HeldRun> inside = intersect(runs, &HeldRun::held, range);
  for (HeldRun& run : inside) run.held -= range.begin;
  return inside;
}

std::vector<HeldRun> of_whole(const std::vector<HeldRun>& runs, const FlatRange& range) {
  return intersect(runs, &HeldRun::whole, range);
}

std::int64_t elements_of(const std::vector<HeldRun>& runs) {
  return runs.empty() ? 0 : runs.back().held + runs.back().count - runs.front().held;
}

}  // namespace lancet::ir
