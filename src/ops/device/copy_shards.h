// Copies between a whole tensor [rows, shards, run] and shards [rows, run] (ops/shards.h).
#pragma once
#include "ops/shards.h"
#include "pack.h"

namespace lancet::ops::device {

// Shards [first, first + count), one unit (an element or a pack) per thread, in the order of the shards.
template <class Unit>
struct CopyShards {
  static constexpr int threads = 256;
  Unit *whole, *shards;
  bool join;  // to the whole; else from it
  std::int64_t of, rows, run, first, count;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = std::int64_t(block.index()) * threads + block.thread();
    if (i >= count * rows * run) return;
    const std::int64_t row = i / run, shard = first + row / rows;
    Unit& at = whole[(row % rows * of + shard) * run + i % run];
    if (join)
      at = shards[i];
    else
      shards[i] = at;
  }
};

template <class Unit>
Status launch_copy_shards(backend::Stream& stream, const ShardLayout& layout, std::int64_t run, bool join,
                          std::byte* whole, std::byte* shards, std::int64_t first, std::int64_t count) {
  const CopyShards<Unit> kernel{reinterpret_cast<Unit*>(whole),
                                reinterpret_cast<Unit*>(shards),
                                join,
                                layout.shards,
                                layout.rows,
                                run,
                                first,
                                count};
  return launch(stream, divide_up(count * layout.rows * run, kernel.threads), kernel);
}

// Queues the copy of shards [first, first + count) between the whole and `shards`, where they are one after the other.
inline Status copy_shards(backend::Stream& stream, const ShardLayout& layout, std::int64_t unit, bool join,
                          std::byte* whole, std::byte* shards, std::int64_t first, std::int64_t count) {
  const std::int64_t bytes = layout.run * unit;
  if (bytes % 16 == 0 && aligned(whole, shards))
    return launch_copy_shards<Pack<float>>(stream, layout, bytes / 16, join, whole, shards, first, count);
  if (unit == 4) return launch_copy_shards<float>(stream, layout, layout.run, join, whole, shards, first, count);
  return launch_copy_shards<bf16>(stream, layout, layout.run, join, whole, shards, first, count);
}

}  // namespace lancet::ops::device
