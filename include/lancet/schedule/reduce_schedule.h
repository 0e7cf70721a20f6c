// All-reduces of gradients in chunks that fit between the all-to-alls.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"

namespace lancet::schedule {

struct ReduceReport {
  std::int64_t chunk_bytes = 0;        // 0: the buckets as they were
  bool all_to_all_first = false;       // chunks wait for the all-to-alls that are on the wire
  double before_ms = 0, after_ms = 0;  // simulated makespans
};
// A Program and, per instruction, earlier ones that it shall wait for besides its dependencies.
struct Ordered {
  ir::Program program;
  std::vector<std::vector<ir::InstructionId>> extra;
};
// Cuts the gradients' all-reduces (sync's buckets) anew, into chunks that fit between all-to-alls: an all-to-all then
// waits for one chunk at most, or shares the wire with small ones. Large gradients are reduced in slices. A chunk may
// wait for the all-to-all that is on the wire when it is ready; updates at the end of the step go in the order in which
// their gradients are ready. Of several chunk sizes, with such waits and without, the one with the shortest simulated
// step; where that is no gain, everything stays. op_costs: per instruction; those of new all-reduces are asked of the
// costs.
Ordered reduce_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        ReduceReport* report = nullptr);

}  // namespace lancet::schedule
