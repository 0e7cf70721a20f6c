// The planner: makes a rank's Plan from a logical forward Program by the pipeline of passes of a policy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/schedule/simulate.h"

namespace lancet::planner {

// What predicted gains were off by at most on emulated devices under even loads (docs/planning.md, "How far a predicted
// gain is off").
inline constexpr double prediction_error = 0.02;

// The record of one pass of the pipeline that made a plan.
struct PassRun {
  std::string name;
  double ms = 0;                 // duration of the pass
  std::size_t instructions = 0;  // of its result
  std::string text;              // its result, printed; empty unless PlanRequest::keep_texts
};

struct PlanRequest {
  config::Overlap overlap = {};        // the policy and its settings
  const cost::Costs* costs = nullptr;  // required by every policy but sequential
  bool costs_may_lack_ops = false;     // if they do, sequential makes a plan without predictions
  // The share of the sequential step by which the policy must be predicted to be shorter to replace it.
  double least_gain = 0;
  ir::Mesh mesh = {};
  passes::OptimizeOptions optimizer = {};
  passes::GradientSums gradient_sums = {};
  bool fuse = false;        // GELU is fused with the products beside it
  bool accumulate = false;  // gradients add up in states, so that several micro batches make one step
  int micro_batches = 1;    // in the plan; more than 1 only with `accumulate`
  // Where the mesh has several pipeline stages: the first block of each, and their order.
  std::vector<int> first_blocks = {};
  config::PipelineSchedule pipeline_schedule = config::PipelineSchedule::one_forward_one_backward;
  // The report holds all policies, not only sequential and the requested one, unless the step is a large one.
  bool compare = false;
  std::vector<std::string> skip = {};  // names of passes to leave out
  bool keep_texts = false;             // PassRun::text is filled
  // The budget: bytes of a rank's parameters, states, inputs and arena. So that they suffice, values of the forward
  // pass are recomputed in the backward pass (passes/passes.h). 0: no limit. An error says that no plan is within
  // memory_limit; the memory of the device, by default that of the costs, only bounds what a plan takes beyond the
  // smallest.
  std::int64_t memory_limit = 0, device_bytes = 0;
  std::int64_t budget() const;  // the least of these; 0: none
};

// The schedule of one policy, as simulated. Milliseconds.
struct PolicyResult {
  std::string policy;
  std::string how;  // the schedule that it chose, in words
  schedule::Timeline timeline;
  int parts = 1;                 // k: schedule::most_parts()
  std::int64_t arena_bytes = 0;  // of the resulting plan
  bool fits = true;              // the budget; else it is the policy's plan that needs least
};

// A lower bound on the makespan of every order of the step's whole instructions: the work of the compute stream, with
// the core time of moving bytes; the work of the network; or, where updates wait for the norm of the gradients
// (train.clip_grad), the forward pass, the sums of gradients and the updates one after the other. Milliseconds. Parts
// may together take a little less time than the whole message or product.
struct LowerBound {
  double compute = 0, network = 0, in_turn = 0;
  double ms() const { return std::max({compute, network, in_turn}); }
};

// A plan within a budget. Bytes of a rank: named tensors and the arena.
struct MemoryReport {
  std::int64_t limit = 0;
  std::int64_t bytes = 0;     // of the plan
  std::int64_t all_kept = 0;  // of the sequential step in which nothing is recomputed
  // What a micro batch keeps of its forward pass for its backward pass: in the plan, and if nothing is recomputed.
  std::int64_t activations = 0, all_activations = 0;
};

struct PlanReport {
  std::vector<PassRun> passes;  // the passes that made the plan, in order, after the logical Program itself
  // The policies that were tried, in the table's order; empty without costs. Where values are recomputed: of the step
  // with what the plan recomputes, but for sequential, which has its own choice.
  std::vector<PolicyResult> policies;
  std::string requested, chosen;     // names of policies
  std::string why;                   // set if another policy than the requested one runs
  bool memory_binds = false;         // with a larger budget the requested policy would have another plan
  std::string why_not_across_steps;  // set if the requested policy would use overlap.across_steps, and does not
  LowerBound lower_bound;
  std::optional<MemoryReport> memory;  // set if the request has a limit, or values are recomputed
};

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

struct PolicyInfo {
  std::string_view name, what;
  std::span<const std::string_view> cuts = {};  // schedule::all_cuts() and pass_cuts(): those that it may apply
};
std::vector<PolicyInfo> policies();  // sequential first, lancet last
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

// As make_plan(), by stage, for a mesh of several. The order within a stage is that
// of request.pipeline_schedule, and request.first_blocks says where the model is cut (passes/passes.h). The header also
// holds the schedule and the stage; predicted_ms is the makespan over all stages. Predictions are made if there are
// costs and they lack no op. The plans pass ir::verify_ranks. Errors: those of make_plan().
Result<std::vector<ir::Plan>> make_stage_plans(const ir::Program& logical, const PlanRequest& request,
                                               PlanReport* report = nullptr, StageReport* stages = nullptr);

// As step_program(), by stage.
Result<std::vector<ir::Program>> stage_programs(const ir::Program& logical, const PlanRequest& request);

// Forward-only plans (evaluation, generation), by stage; outputs that the model defines as shares are summed over the
// ranks. Losses and logits are on all stages, other outputs on the stage that makes them.
Result<std::vector<ir::Plan>> make_forward_plans(const ir::Program& logical, const ir::Mesh& mesh,
                                                 std::span<const int> first_blocks = {});

}  // namespace lancet::planner
