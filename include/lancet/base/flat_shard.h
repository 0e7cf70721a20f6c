// Flat shards: the division of one tensor's elements among the ranks of a group (ZeRO, Rajbhandari et al., SC 2020,
// section 5.1). The tensor is taken as flat and padded: the rank at place p owns the elements [p s, (p + 1) s) of it,
// of which those from n on are padding. The shards of a tensor depend on n and the number of ranks alone, not on
// buckets or on a plan, so that states can be saved and restored under any plan.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lancet {

// Shards have a multiple of this many elements, so that they begin at whole cache lines of f32.
inline constexpr std::int64_t flat_shard_step = 16;

// s: the elements of each shard of a tensor of n elements, n / ranks rounded up to a multiple of flat_shard_step.
constexpr std::int64_t flat_shard_elements(std::int64_t n, std::int64_t ranks) {
  const std::int64_t share = (n + ranks - 1) / ranks;
  return (share + flat_shard_step - 1) / flat_shard_step * flat_shard_step;
}

// The elements [begin, end) of the tensor that a rank owns, without padding; none, where all of its shard is padding.
struct FlatRange {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  friend constexpr bool operator==(const FlatRange&, const FlatRange&) = default;
};
constexpr FlatRange flat_range(std::int64_t n, std::int64_t ranks, std::int64_t place) {
  const std::int64_t s = flat_shard_elements(n, ranks);
  return {std::min(place * s, n), std::min((place + 1) * s, n)};
}

}  // namespace lancet
