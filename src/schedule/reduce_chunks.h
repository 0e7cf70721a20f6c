// Cuts the all-reduces of gradients into chunks.
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

// Replaces sync's buckets by all-reduces of about chunk_bytes, each after the instruction that completes it; large
// gradients are reduced in slices. op_costs: per instruction; those of new all-reduces are taken from `costs`.
Chunked cut_all_reduces(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        std::int64_t chunk_bytes);

// At most `most` chunk sizes worth trying, in descending order: smaller than the largest bucket, and not so small that
// start-up times dominate, on the network or on the cores.
std::vector<std::int64_t> chunk_sizes(const ir::Program& program, const cost::Costs& costs, std::size_t most);

}  // namespace lancet::schedule
