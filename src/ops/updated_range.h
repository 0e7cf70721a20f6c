// The weights that an optimizer's update changes.
#pragma once
#include "lancet/base/flat_shard.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// The elements of operand 0: all, or with the attribute `shards` those of this rank's flat shard.
inline FlatRange updated_range(const KernelArgs& args) {
  const std::int64_t n = args.operands[0].elements();
  if (!args.attributes.has("shards")) return {0, n};
  return flat_range(n, args.attributes.integer("shards"), args.group.place);
}

}  // namespace lancet::ops
