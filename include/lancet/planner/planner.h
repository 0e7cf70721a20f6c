// From a forward Program to a Plan: the policies, and the pipeline of passes that each of them is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/pass_run.h"
#include "lancet/schedule/simulate.h"

namespace lancet::planner {

struct PlanRequest {
  config::Overlap overlap = {};         // the policy and its settings
  const cost::Costs* costs = nullptr;   // every policy but sequential needs them
  bool costs_may_lack_ops = false;      // sequential then makes a plan without predictions
  int ranks = 1;
  passes::OptimizeOptions optimizer = {};
  bool accumulate = false;  // gradients add up over several plans' runs
  bool update = true;       // false: a micro batch that only adds its gradients up
  bool fuse = false;        // GELU within the products beside it
  bool compare = false;     // the report holds all policies, not only sequential and the requested one
  std::vector<std::string> skip = {};  // names of passes to leave out
  bool keep_texts = false;             // PassRun::text is filled
};

// The schedule of one policy, as simulated. Milliseconds.
struct PolicyResult {
  std::string policy;
  std::string what;  // the policy, in words
  std::string how;   // the schedule that it chose, in words
  schedule::Timeline timeline;
  int parts = 1;                 // the most that an instruction is split in: k
  std::int64_t arena_bytes = 0;  // of the plan that it makes
};

// A lower bound of every order of the step's instructions: the work of the compute stream with what moving bytes takes of
// it, and the work of the network. Milliseconds. Messages and products in parts may take a little less than whole.
struct LowerBound {
  double compute = 0, network = 0;
  double ms() const { return compute > network ? compute : network; }
};

struct PlanReport {
  std::vector<PassRun> passes;         // that made the plan, in order; the first is the forward Program itself
  std::vector<PolicyResult> policies;  // that were tried, in the table's order; empty without costs
  std::string requested, chosen;       // policies
  std::string why;                     // set where another policy than the requested one runs
  LowerBound lower_bound;
};

// With costs, sequential replaces a policy that is predicted to be no faster, unless overlap.parts forces a split. The
// header says what the plan is of (policy, model: the hash of the forward Program's text, ranks, optimizer, build:
// cost::kernel_build) and, with costs, what it rests on and predicts (profile: Costs::identity; predicted_ms,
// exposed_ms). Config errors: an unknown policy or pass to skip (the message lists the known ones); a pass that cannot
// be skipped; costs that lack an op.
Result<ir::Plan> make_plan(const ir::Program& forward, const PlanRequest& request, PlanReport* report = nullptr);

// Training steps whose instructions hold every op that a policy may ask the costs about: the step after autodiff, sync
// and optimize, and its variants in parts.
std::vector<ir::Program> programs_to_profile(const ir::Program& forward, const PlanRequest& request);

// A forward-only plan (evaluation, generation); outputs are summed over ranks where the model says they are shares.
// costs: choose how all-to-alls travel; may be null.
ir::Plan make_forward_plan(const ir::Program& forward, int ranks, const cost::Costs* costs);

struct PolicyInfo {
  std::string_view name, what;
};
std::vector<PolicyInfo> policies();  // sequential first, auto last
// Config error where no policy has the name; the message lists those there are.
Status check_policy(std::string_view name);

}  // namespace lancet::planner
