// The simulator: it plans, predicts, and is held against the measured trace. Streams run in program order, each
// instruction after the instructions it needs; what runs side by side slows down as the costs say.
#pragma once
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"

namespace lancet::schedule {

// Per instruction, ascending, the earlier instructions that it may not start before (ir::dependencies, and more).
using Dependencies = std::vector<std::vector<ir::InstructionId>>;

struct Timeline {
  std::vector<ir::Interval> when;  // per instruction, milliseconds
  double makespan = 0;
  double compute = 0, all_to_all = 0, all_reduce = 0;  // busy time of the streams
  double communication = 0;                            // a communication stream is busy
  double exposed = 0;                                  // and the compute stream is not
};

// Whether an all-reduce that is ready may start beside an all-to-all, or lets it have the wire to itself first.
enum class Network { shared, all_to_all_first };

// op_costs: per instruction. An instruction starts when its stream is free and what it needs has ended, launch_ms after that
// where it is another stream's. Communication goes at network_beside_compute while the compute stream is busy, times
// network_beside_network while both communication streams are; compute at what the cores that move bytes leave it: core_ms are
// taken from it over the whole of a communication, however long that then is. Time linear in instructions and needs.
Timeline simulate(const ir::Program& program, const Dependencies& needed, std::span<const cost::OpCost> op_costs,
                  const cost::Interference& interference, double launch_ms, Network wire = Network::shared);

}  // namespace lancet::schedule
