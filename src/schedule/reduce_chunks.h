// The gradients' all-reduces in chunks.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/cost/costs.h"

namespace lancet::schedule {

struct Chunked {
  ir::Program program;
  std::vector<cost::OpCost> op_costs;
};

// All-reduces of about chunk_bytes in place of sync's buckets, each behind the instruction that completes it; large
// gradients are reduced in slices. op_costs: per instruction; those of new all-reduces are asked of the costs.
Chunked cut_all_reduces(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        std::int64_t chunk_bytes);

// At most so many sizes worth trying, falling: below the largest bucket, and not so small that start-up times rule, on
// the wire or on the cores.
std::vector<std::int64_t> chunk_sizes(const ir::Program& program, const cost::Costs& costs, std::size_t most);

}  // namespace lancet::schedule
