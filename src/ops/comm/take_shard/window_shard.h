// Which shard of a tensor a window is (op.cpp); window 0 is the rank's own shard.
#pragma once
#include "lancet/ops/kernel.h"
#include "ops/shards.h"

namespace lancet::ops {

struct WindowShards {
  ShardLayout layout;
  std::int64_t unit, place;  // unit: bytes of an element

  WindowShards(const KernelArgs& args, const TensorView& whole)
      : layout(ShardedDimension(args.attributes).layout(whole.shape(), args.attributes.integer("shards"))),
        unit(size_of(whole.dtype())),
        place(args.group.place) {
    LANCET_CHECK(place < layout.shards, "{} is planned for {} ranks, found place {}", args.op, layout.shards, place);
  }
  std::int64_t shard_of(std::int64_t window) const { return (place + window) % layout.shards; }
};

}  // namespace lancet::ops
