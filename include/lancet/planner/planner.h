// From a forward Program to a Plan: the policies, and the driver that runs their passes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/planner/passes.h"
#include "lancet/planner/simulate.h"

namespace lancet::planner {

// How far partitioning may go (Lancet, section 5.1).
struct PartitionLimits {
  int max_parts = 8;       // rho: parts of an instruction
  int parts = 0;           // exactly so many, whether that pays or not; 0: what pays, up to max_parts
  int groups_per_moe = 5;  // gamma: groups of instructions between two MoE layers
  int max_range = 16;      // iota: groups in one range; the whole forward pass is tried as one, too
  bool backward = true;    // lancet: the backward pass may be split as well, beyond the paper
  int reach = -1;          // exactly so many groups before and after each MoE layer in its range; -1: what pays
};

struct PlanRequest {
  std::string policy = "sequential";
  const cost::Costs* costs = nullptr;  // every policy but sequential needs them
  PartitionLimits partition = {};
  int ranks = 1;
  std::int64_t bucket_bytes = 25 << 20;
  OptimizeOptions optimizer = {};
  bool accumulate = false;  // gradients add up over several plans' runs
  bool update = true;       // false: a micro batch that only adds its gradients up
  bool fuse = false;        // GELU within the products beside it
  bool compare = false;     // the report shall hold all policies, not only sequential and the one asked for
  // Writes NN_name.ir after each pass into this folder; empty: nowhere.
  std::string dump_directory = {};
};

// What the policies come to, as simulated. Milliseconds; empty without costs.
struct PolicyResult {
  std::string policy;
  std::string what;  // the policy, in words
  std::string how;   // the schedule that it chose, in words
  Timeline timeline;
  int parts = 1;                 // the most that an instruction is split in: k
  std::int64_t arena_bytes = 0;  // of the plan that it makes
};
// What no order of the step's instructions can go below: the work of the compute lane with what moving bytes takes of
// it, and the wire's. Milliseconds. Messages and products in parts may take a little less than whole.
struct Floor {
  double compute = 0, wire = 0;
  double ms() const { return compute > wire ? compute : wire; }
};
struct PlanReport {
  std::vector<PolicyResult> policies;  // those that were tried, in the table's order
  std::string asked, chosen;           // policies
  std::string why;                     // where another policy than the one asked for runs
  Floor floor;
};

// With costs, sequential takes the place of a policy that is predicted to be no faster. The header says what the plan
// is of (policy, model: the hash of the forward Program's text, ranks, optimizer, build: cost::kernel_build) and, with
// costs, what it rests on and comes to (profile: Costs::identity; predicted_ms, exposed_ms). Errors: an unknown policy
// (the message names those there are); costs that lack an op.
Result<ir::Plan> make_plan(const ir::Program& forward, const PlanRequest& request, PlanReport* report = nullptr);

// Training steps whose instructions hold every op that a policy may ask the costs about: the step after autodiff, sync
// and optimize, and its variants in parts.
std::vector<ir::Program> programs_to_profile(const ir::Program& forward, const PlanRequest& request);

// A forward-only plan (evaluation, generation); outputs are summed over ranks where the model says they are shares.
Result<ir::Plan> make_forward_plan(const ir::Program& forward, int ranks);

std::vector<std::string_view> policies();  // sequential first, auto last

}  // namespace lancet::planner
