// The simulator: it plans, predicts, and is held against the measured trace. Lanes run in program order, each
// instruction after the instructions it needs; what runs side by side slows down as the costs say.
#pragma once
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"

namespace lancet::schedule {

// Per instruction, ascending, the earlier instructions that it may not start before (ir::dependencies, and more).
using Needed = std::vector<std::vector<ir::InstructionId>>;

struct Timeline {
  std::vector<ir::Interval> when;  // per instruction, milliseconds
  double makespan = 0;
  double compute = 0, all_to_all = 0, all_reduce = 0;  // busy time of the lanes
  double communication = 0;                            // a communication lane is busy
  double exposed = 0;                                  // and the compute lane is not
};

// Whether an all-reduce that is ready may start beside an all-to-all, or lets it have the wire to itself first.
enum class Wire { shared, all_to_all_first };

// loads: per instruction. An instruction starts when its lane is free and what it needs has ended, launch_ms after that
// where it is another lane's. Communication goes at wire_beside_compute while the compute lane is busy, times
// wire_beside_wire while both communication lanes are; compute at what the cores that move bytes leave it: core_ms are
// taken from it over the whole of a communication, however long that then is. Time linear in instructions and needs.
Timeline simulate(const ir::Program& program, const Needed& needed, std::span<const cost::Load> loads,
                  const cost::Interference& interference, double launch_ms, Wire wire = Wire::shared);

}  // namespace lancet::schedule
