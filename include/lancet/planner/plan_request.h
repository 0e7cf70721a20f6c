// What a plan is asked for, and what is said of the plan that was made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/passes/passes.h"
#include "lancet/schedule/bounds.h"
#include "lancet/schedule/simulate.h"

namespace lancet::planner {

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
  // The share of the sequential step by which `auto` must be predicted to be shorter to replace it.
  double least_gain = 0;
  ir::Mesh mesh = {};
  passes::OptimizeOptions optimizer = {};
  passes::GradientSums gradient_sums = {};
  bool fuse = false;        // GELU is fused with the products beside it
  bool accumulate = false;  // gradients add up in states, so that several micro batches make one step
  int micro_batches = 1;    // in the plan; more than 1 only with `accumulate`
  // Where the mesh has several pipeline stages (planner.h): the first block of each, and their order.
  std::vector<int> first_blocks = {};
  config::PipelineSchedule pipeline_schedule = config::PipelineSchedule::one_forward_one_backward;
  // The report holds all policies, not only sequential and the requested one, unless the step is a large one.
  bool compare = false;
  std::vector<std::string> skip = {};  // names of passes to leave out
  bool keep_texts = false;             // PassRun::text is filled
  bool bounds = false;                 // PlanReport::bounds is filled, within overlap.memory_factor
  // Bytes of a rank's parameters, states, inputs and arena. So that they suffice, values of the forward pass are made
  // again in the backward pass (passes/recompute.h). 0: no limit.
  std::int64_t memory_limit = 0;
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

// A plan within PlanRequest::memory_limit. Bytes of a rank: named tensors and the arena.
struct MemoryReport {
  std::int64_t limit = 0;
  std::int64_t bytes = 0;     // of the plan
  std::int64_t all_kept = 0;  // of the step in turns in which nothing is made again
  // What a micro batch keeps of its forward pass for its backward pass: in the plan, and if nothing is made again.
  std::int64_t activations = 0, all_activations = 0;
};

struct PlanReport {
  std::vector<PassRun> passes;         // the passes that made the plan, in order, after the logical Program itself
  std::vector<PolicyResult> policies;  // the policies that were tried, in the table's order; empty without costs
  std::string requested, chosen;       // names of policies
  std::string why;                     // set if another policy than the requested one runs
  std::string why_not_across_steps;    // set if the requested policy would use overlap.across_steps, and does not
  LowerBound lower_bound;
  std::optional<PlanBounds> bounds;
  std::optional<MemoryReport> memory;  // set if the request has a limit
};

}  // namespace lancet::planner
