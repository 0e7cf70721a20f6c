// The planner: makes a rank's Plan from a logical forward Program by the pipeline of passes of a policy.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/pass_run.h"
#include "lancet/schedule/bounds.h"
#include "lancet/schedule/simulate.h"

namespace lancet::planner {

struct PlanRequest {
  config::Overlap overlap = {};        // the policy and its settings
  const cost::Costs* costs = nullptr;  // required by every policy but sequential
  bool costs_may_lack_ops = false;     // if they do, sequential makes a plan without predictions
  // The share of the sequential step by which `auto` must be predicted to be shorter to replace it.
  double least_gain = 0;
  mesh::Mesh mesh = {};
  passes::OptimizeOptions optimizer = {};
  passes::GradientSums gradient_sums = {};
  bool fuse = false;        // GELU is fused with the products beside it
  bool accumulate = false;  // gradients add up in states, so that several micro batches make one step
  int micro_batches = 1;    // in the plan; more than 1 only with `accumulate`
  // Where the mesh has several pipeline stages (stage_plans.h): the first block of each, and their order.
  std::vector<int> first_blocks = {};
  config::PipelineSchedule pipeline_schedule = config::PipelineSchedule::one_forward_one_backward;
  // The report holds all policies, not only sequential and the requested one, unless the step is a large one.
  bool compare = false;
  std::vector<std::string> skip = {};  // names of passes to leave out
  bool keep_texts = false;             // PassRun::text is filled
  bool bounds = false;                 // PlanReport::bounds is filled, within overlap.memory_factor
};

// The schedule of one policy, as simulated. Milliseconds.
struct PolicyResult {
  std::string policy;
  std::string how;  // the schedule that it chose, in words
  schedule::Timeline timeline;
  int parts = 1;                 // k: schedule::most_parts()
  std::int64_t arena_bytes = 0;  // of the resulting plan
};

// A lower bound on the makespan of every order of the step's whole instructions: the work of the compute stream, with
// the core time of moving bytes, and the work of the network. Milliseconds. Parts may together take a little less time
// than the whole message or product.
struct LowerBound {
  double compute = 0, network = 0;
  double ms() const { return compute > network ? compute : network; }
};

// What ways to overlap would bring with ideal dependencies: to the whole step, and to the plan that runs.
struct PlanBounds {
  double memory_factor = 0;
  schedule::Bounds step, plan;
};

struct PlanReport {
  std::vector<PassRun> passes;         // the passes that made the plan, in order, after the logical Program itself
  std::vector<PolicyResult> policies;  // the policies that were tried, in the table's order; empty without costs
  std::string requested, chosen;       // names of policies
  std::string why;                     // set if another policy than the requested one runs
  std::string why_not_across_steps;    // set if the policy that runs would use overlap.across_steps, and it may not
  LowerBound lower_bound;
  std::optional<PlanBounds> bounds;
};

// With costs, sequential replaces a policy that is predicted to be no faster, or `auto` below least_gain, unless
// overlap.parts forces a split. A policy schedules one micro batch; the pass micro_batches repeats its schedule, and
// all times are those of the micro batches together. The header holds what the plan was made from (policy, model: the
// hash of the logical Program's text, ranks, mesh if instructions name its groups, optimizer, build:
// cost::kernel_build) and, with costs, their name and the prediction (profile: Costs::identity; predicted_ms,
// exposed_ms). Config errors: an unknown policy or pass to skip (the message lists the known ones); a pass that cannot
// be skipped; costs that lack an op; those of passes::shard and passes::partition_spmd.
Result<ir::Plan> make_plan(const ir::Program& logical, const PlanRequest& request, PlanReport* report = nullptr);

// One rank's training step, with one micro batch, before a policy schedules it. Errors: those of passes::shard and
// passes::partition_spmd.
Result<ir::Program> step_program(const ir::Program& logical, const PlanRequest& request);

// Training steps whose instructions include every op that a policy may need the cost of: the step after autodiff, sync
// and optimize, and its variants in parts.
Result<std::vector<ir::Program>> programs_to_profile(const ir::Program& logical, const PlanRequest& request);

// A forward-only plan (evaluation, generation); outputs that the model defines as shares are summed over the ranks.
Result<ir::Plan> make_forward_plan(const ir::Program& logical, const mesh::Mesh& mesh);

struct PolicyInfo {
  std::string_view name, what;
};
std::vector<PolicyInfo> policies();  // sequential first, auto last
// The policies that a plan of `micro_batches` micro batches is compared with: those that make a schedule of their own,
// without the steps of an ablation.
std::vector<std::string_view> compared_policies(std::int64_t micro_batches = 1);
// Config error if no policy has the name; the message lists the known policies.
Status check_policy(std::string_view name);
// Config error if a name is no pass, or that of one that no plan can do without.
Status check_skip(const std::vector<std::string>& skip);

}  // namespace lancet::planner
