// Copies between a whole tensor and its shards (ops/shards.h), a launch for each block of a row.
#pragma once
#include "ops/shards.h"
#include "pack.h"

namespace lancet::ops::device {

// One block of the rows of shards [first, first + count), one unit (an element or a pack) per thread, in the order of
// the shards.
template <class Unit>
struct CopyShards {
  static constexpr int threads = 256;
  Unit *whole, *shards;
  bool join;  // to the whole; else from it
  std::int64_t of, rows, first, count;
  std::int64_t run, before, row;  // units of a shard's row: in the block, before it, and in all

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = std::int64_t(block.index()) * threads + block.thread();
    if (i >= count * rows * run) return;
    const std::int64_t r = i / run, shard = first + r / rows;
    Unit& in_whole = whole[(r % rows * row + before) * of + shard * run + i % run];
    Unit& in_shard = shards[r * row + before + i % run];
    if (join)
      in_whole = in_shard;
    else
      in_shard = in_whole;
  }
};

template <class Unit>
Status launch_copy_shards(backend::Stream& stream, const ShardLayout& layout, std::int64_t run, bool join,
                          std::byte* whole, std::byte* shards, std::int64_t first, std::int64_t count) {
  CopyShards<Unit> kernel{reinterpret_cast<Unit*>(whole),
                          reinterpret_cast<Unit*>(shards),
                          join,
                          layout.shards,
                          layout.rows,
                          first,
                          count,
                          0,
                          0,
                          layout.units() * run};
  for (const std::int64_t width : layout.widths) {
    kernel.run = width * run;
    LANCET_TRY(launch(stream, divide_up(count * layout.rows * kernel.run, kernel.threads), kernel));
    kernel.before += kernel.run;
  }
  return {};
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
