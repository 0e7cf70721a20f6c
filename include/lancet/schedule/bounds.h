// What a way to overlap would bring to a step with ideal dependencies, before the way is built.
//
// Each instruction is cut in equal tiles at no cost. Today a tile waits for all tiles of what its instruction reads;
// under a way to overlap, a tile of some instructions waits for the corresponding tiles only. A list schedule of the
// tiles is the time that the way could reach: messages take turns on the network, the network and computation do not
// slow each other down, launches and moving bytes take no time, and memory has no limit.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"

namespace lancet::schedule {

struct OverlapWay {
  std::string_view name, what, from;  // from: who published it
};
// The last one is all others together. Sources: Comet (MLSys 2025), section 3; Tutel (MLSys 2023); FasterMoE (PPoPP
// 2022); Lancet (MLSys 2024), section 5; FlowMoE (NeurIPS 2025); Wang et al., Overlap Communication with Dependent
// Computation via Decomposition (ASPLOS 2023); Megatron-LM and DeepSeek-V3's DualPipe.
std::span<const OverlapWay> overlap_ways();

// An ideal schedule of one step. Milliseconds.
struct IdealStep {
  double ms = 0;
  double exposed = 0;  // time in which the network is busy and the compute stream is not
};

struct Bounds {
  double compute = 0, network = 0;  // milliseconds of work
  IdealStep today;                  // with the dependencies of the program
  std::vector<IdealStep> ways;      // in the order of overlap_ways(): today's dependencies but for those of the way
  double least() const { return compute > network ? compute : network; }
};

// The bounds of a step, whole or already split in parts. No way is longer than `today`, nor than a way that it
// contains. Weight gradients and updates run where the compute stream would wait, or by urgency, whatever is shorter.
// The time is linear in instructions times tiles, about 1 s for 1,000 instructions.
Bounds find_bounds(const ir::Program& program, std::span<const cost::OpCost> op_costs);

}  // namespace lancet::schedule
