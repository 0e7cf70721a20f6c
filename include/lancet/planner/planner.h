// The planner: makes a rank's Plan from a logical forward Program by the pipeline of passes of a policy.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/plan_request.h"

namespace lancet::planner {

// With costs, sequential replaces a policy that is predicted to be no faster, or `auto` below least_gain, unless
// overlap.parts forces a split. A policy schedules one micro batch; the pass micro_batches repeats its schedule, and
// all times are those of the micro batches together. The header holds what the plan was made from (policy, model: the
// hash of the logical Program's text, ranks, mesh if instructions name its groups, optimizer, build:
// cost::kernel_build) and, with costs, their name and the prediction (profile: Costs::identity; predicted_ms,
// exposed_ms). Config errors: an unknown policy or pass to skip (the message lists the known ones); a pass that cannot
// be skipped; costs that lack an op; a memory limit below what any plan needs, with the smallest that would do; those
// of passes::shard and passes::partition_spmd.
Result<ir::Plan> make_plan(const ir::Program& logical, const PlanRequest& request, PlanReport* report = nullptr);

// One rank's training step, with one micro batch, before a policy schedules it. Errors: those of passes::shard and
// passes::partition_spmd.
Result<ir::Program> step_program(const ir::Program& logical, const PlanRequest& request);

// Training steps whose instructions include every op and every kind of message that a policy may need the cost of on
// this number of hosts: the step after autodiff, sync and optimize, and its variants in parts.
Result<std::vector<ir::Program>> programs_to_profile(const ir::Program& logical, const PlanRequest& request, int hosts);

// A forward-only plan (evaluation, generation); outputs that the model defines as shares are summed over the ranks.
Result<ir::Plan> make_forward_plan(const ir::Program& logical, const ir::Mesh& mesh);

// Why no part of a step may run in the next one; empty: it may.
std::string why_not_across_steps(const PlanRequest& request);

struct PolicyInfo {
  std::string_view name, what;
  std::span<const std::string_view> cuts = {};  // schedule::all_cuts() and pass_cuts(): those that it may apply
};
std::vector<PolicyInfo> policies();  // sequential first, auto last
// The policies that a plan of `micro_batches` micro batches is compared with: those that make a schedule of their own.
std::vector<std::string_view> compared_policies(std::int64_t micro_batches = 1);
// Config error if no policy has the name; the message lists the known policies.
Status check_policy(std::string_view name);
// Config error if a name is no pass, or that of one that no plan can do without.
Status check_skip(const std::vector<std::string>& skip);

// Plans of pipeline stages: one for each stage of the mesh, made together.

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
