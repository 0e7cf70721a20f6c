// Plans of pipeline stages: one for each stage of the mesh, made together.
#pragma once
#include <string>
#include <vector>

#include "lancet/planner/planner.h"

namespace lancet::planner {

// The time of a step over all stages, as simulated. Milliseconds.
struct StageReport {
  std::string how;  // the schedule; of a search, also what it found
  double makespan = 0;
  double least = 0;                     // what no order of the stages' instructions goes below
  std::vector<double> compute, bubble;  // by stage: busy and idle time of the compute stream, which are the makespan
};

// As make_plan(), by stage, for the request's mesh; one plan where it has one stage. The order within a stage is that
// of request.pipeline_schedule, and request.first_blocks says where the model is cut (passes/stages.h). The header also
// holds the schedule and the stage; predicted_ms is the makespan over all stages. Predictions are made if there are
// costs and they lack no op. The plans pass ir::verify_ranks. Errors: those of make_plan().
Result<std::vector<ir::Plan>> make_stage_plans(const ir::Program& logical, const PlanRequest& request,
                                               PlanReport* report = nullptr, StageReport* stages = nullptr);

// As step_program(), by stage.
Result<std::vector<ir::Program>> stage_programs(const ir::Program& logical, const PlanRequest& request);

// As make_forward_plan(), by stage. Losses and logits are on all stages, other outputs on the stage that
// makes them.
Result<std::vector<ir::Plan>> make_forward_stage_plans(const ir::Program& logical, const ir::Mesh& mesh,
                                                       std::span<const int> first_blocks);

}  // namespace lancet::planner
