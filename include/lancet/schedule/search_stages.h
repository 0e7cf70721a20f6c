// Orders the instructions of all pipeline stages together, by predicted times.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "lancet/schedule/pipeline_order.h"
#include "lancet/schedule/simulate_stages.h"

namespace lancet::schedule {

struct StagesOrder {
  std::vector<PipelineOrder> stages;
  double makespan = 0;  // of simulate_stages
};

// stages: as in_pipeline_order() takes them, with the dependencies that the programs have (ir::dependencies) and costs.
// Returns the shortest of the list schedules in which no arena is larger than `most_bytes`, by stage; nothing if each
// needs more.
// Weight gradients run where a stage has nothing else to do; computation and all messages overlap as they may.
std::optional<StagesOrder> search_stages(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms,
                                         std::span<const std::int64_t> most_bytes);

}  // namespace lancet::schedule
