// Weight gradients under the backward all-to-alls (Lancet, section 4).
#pragma once
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"

namespace lancet::schedule {

// What dw_schedule laid under an all-to-all. Instructions are those of the Program that it returned. Its room is the
// computation that it can hide: its time beside computation, less what its bytes take of the cores.
struct DwCover {
  ir::InstructionId all_to_all;
  double slack_ms = 0, covered_ms = 0;
  std::vector<ir::InstructionId> under;
};
struct DwReport {
  std::vector<DwCover> covers = {};    // in launch order; empty where nothing was moved
  double slack_ms = 0, covered_ms = 0;  // of all all-to-alls
  double before_ms = 0, after_ms = 0;  // simulated makespans
  int movable = 0;                     // instructions that could have been moved
};
// Moves computation under the all-to-alls that no path joins it to (Lancet, section 4): dense and expert dWs, updates
// that wait for no all-reduce, and what else lies beside an MoE layer. An all-to-all is followed by what was assigned
// to it (assign_dw.h); all-reduces go where their gradients now are complete. What the simulation finds no shorter
// stays as it is. op_costs: per instruction.
ir::Program dw_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs,
                        const cost::Interference& interference, double launch_ms, DwReport* report = nullptr);

}  // namespace lancet::schedule
