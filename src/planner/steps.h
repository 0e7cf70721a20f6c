// The steps that all kinds of plans are made of.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lancet/passes/passes.h"
#include "lancet/planner/plan_request.h"
#include "lancet/schedule/candidate.h"
#include "pipeline.h"

namespace lancet::planner {

// One rank's Program.
Result<ir::Program> spread(ir::Program logical, const ir::Mesh& mesh, Pipeline& pipeline);

// One rank's step of one micro batch, up to its gradients.
Result<ir::Program> with_gradients(const ir::Program& logical, const PlanRequest& request, Pipeline& pipeline);
// The same with their sums over the ranks and the updates. uncounted: as passes::OptimizeOptions::uncounted.
ir::Program with_updates(ir::Program program, const PlanRequest& request, Pipeline& pipeline,
                         std::vector<std::string> uncounted = {});

// The last of the passes that change single instructions; plans without a repeat do not list it.
ir::Program folded(ir::Program program, const ir::Mesh& mesh, Pipeline& pipeline);

// The last pass of all: the candidate with its memory planned, and its predicted times if it has some.
ir::Plan plan_of(schedule::Candidate candidate, Pipeline& pipeline);

// The schedule without predictions, in which compute and all-to-all take turns.
schedule::Candidate unpredicted(ir::Program program);

// What the plan was made from; of a training step, also the settings of the updates.
void set_header(ir::Plan& plan, const ir::Program& logical, std::string_view policy, const ir::Mesh& mesh);
void set_step_header(ir::Plan& plan, const ir::Program& logical, std::string_view policy, const ir::Mesh& mesh,
                     const passes::OptimizeOptions& optimizer, const passes::GradientSums& sums);

}  // namespace lancet::planner
