// Predicts when the instructions of all pipeline stages run, together.
#pragma once
#include <span>
#include <vector>

#include "lancet/ir/mesh.h"
#include "lancet/schedule/simulate.h"
#include "lancet/schedule/stage_graph.h"

namespace lancet::schedule {

struct StagesTimeline {
  std::vector<Timeline> stages;  // each with the makespan of its own stage
  double makespan = 0;
  // Of a stage: the time in which it computes nothing before the last stage has ended.
  double bubble_ms(std::size_t stage) const { return makespan - stages[stage].compute; }
};

// One rank of each stage stands for all. A message between stages begins when both of its ends are reached and takes
// the longer of their times; a collective along the axis `stage` begins when all stages of its group have reached it.
// Streams that are busy at once do not slow each other down. InternalError: stages wait for one another
// (ir/verify_ranks.h).
StagesTimeline simulate_stages(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms);

}  // namespace lancet::schedule
