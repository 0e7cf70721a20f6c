// Moves weight gradients under the backward all-to-alls (Lancet, section 4), in steps without parts.
#pragma once
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"

namespace lancet::schedule {

// The instructions that dw_schedule moved under an all-to-all, numbered as in the Program that it returned. The slack
// is the computation that the all-to-all can hide: its time beside computation, less the core time of its bytes.
struct DwCover {
  ir::InstructionId all_to_all;
  double slack_ms = 0, covered_ms = 0;
  std::vector<ir::InstructionId> under;
};
struct DwReport {
  std::vector<DwCover> covers = {};     // in launch order; empty if nothing was moved
  double slack_ms = 0, covered_ms = 0;  // sums over all all-to-alls
  double before_ms = 0, after_ms = 0;   // simulated makespans
  int movable = 0;                      // instructions that could have been moved
};
// Moves computation under all-to-alls that it is independent of (Lancet, section 4): dense and expert dWs, updates that
// wait for no all-reduce, and other computation beside an MoE layer. The instructions assigned to an all-to-all
// (assign_dw.h) follow it in the program; all-reduces move to where their gradients are now complete. Returns the
// Program unchanged if the simulation finds no shorter step. op_costs: per instruction.
ir::Program dw_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs,
                        const cost::Interference& interference, double launch_ms, DwReport* report = nullptr);

// Algorithm 1 of the paper: each all-to-all, in launch order, gets the instruction whose time is closest to what is
// left of its own, until nothing is left of it or no instruction can be moved there. Always applied. The text labels
// whatever no path joins to an all-to-all; an instruction that another one waits for keeps its place before it. The
// report's slack is the time of the all-to-alls; it has no makespans.
ir::Program greedy_dw_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, DwReport& report);

}  // namespace lancet::schedule
