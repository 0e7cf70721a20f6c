// Cuts the all-reduces of gradients into chunks, and schedules chunks that fit between the all-to-alls.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"

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

struct ReduceReport {
  std::int64_t chunk_bytes = 0;        // 0: the buckets of sync are unchanged
  bool all_to_all_first = false;       // chunks wait for all-to-alls that are under way
  double before_ms = 0, after_ms = 0;  // simulated makespans
};
// A Program and, per instruction, earlier ones that it waits for besides its dependencies.
struct Ordered {
  ir::Program program;
  std::vector<std::vector<ir::InstructionId>> extra;
};
// Re-chunks gradient all-reduces (sync's buckets), so that an all-to-all waits for one chunk at most, or shares the
// network with small ones. A chunk may wait for the all-to-all that is under way when the chunk is ready; updates at
// the end of the step run in the order in which their gradients become ready. Tries several chunk sizes, with such
// waits and without, and returns the shortest simulated step; the Program is unchanged if none is shorter.
Ordered reduce_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        ReduceReport* report = nullptr);

}  // namespace lancet::schedule
