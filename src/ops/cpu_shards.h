// Copies between a whole tensor and its shards, run by run of each row (shards.h). unit: bytes of an element.
#pragma once
#include <cstddef>
#include <cstring>

#include "ops/cpu.h"
#include "ops/shards.h"

namespace lancet::ops::cpu {

// Calls copy(place in the whole, place in the shard, bytes) for each block of a row of shard `shard`, on all threads.
template <class Copy>
void for_each_run(const ShardLayout& layout, std::int64_t unit, std::int64_t shard, const Copy& copy) {
  const std::int64_t bytes = layout.run * unit, units = layout.units();
  parallel_for(layout.rows, row_grain(units * layout.run), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t at = row * units;  // the units before the block, in the shard
      for (const std::int64_t width : layout.widths) {
        copy((at * layout.shards + shard * width) * bytes, at * bytes, std::size_t(width * bytes));
        at += width;
      }
    }
  });
}

// Copies one shard of the whole.
inline void take_shard(const ShardLayout& layout, std::int64_t unit, std::int64_t shard, const std::byte* whole,
                       std::byte* to) {
  for_each_run(layout, unit, shard, [&](std::int64_t at, std::int64_t in_shard, std::size_t bytes) {
    std::memcpy(to + in_shard, whole + at, bytes);
  });
}
// Copies one shard to its place in the whole.
inline void put_shard(const ShardLayout& layout, std::int64_t unit, std::int64_t shard, const std::byte* from,
                      std::byte* whole) {
  for_each_run(layout, unit, shard, [&](std::int64_t at, std::int64_t in_shard, std::size_t bytes) {
    std::memcpy(whole + at, from + in_shard, bytes);
  });
}
// Copies all shards of the whole, one after the other.
inline void split_shards(const ShardLayout& layout, std::int64_t unit, const std::byte* whole, std::byte* shards) {
  for (std::int64_t shard = 0; shard < layout.shards; ++shard)
    take_shard(layout, unit, shard, whole, shards + shard * layout.shard() * unit);
}
// The inverse of split_shards.
inline void join_shards(const ShardLayout& layout, std::int64_t unit, const std::byte* shards, std::byte* whole) {
  for (std::int64_t shard = 0; shard < layout.shards; ++shard)
    put_shard(layout, unit, shard, shards + shard * layout.shard() * unit, whole);
}

}  // namespace lancet::ops::cpu
