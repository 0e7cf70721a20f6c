#include "lancet/planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "lancet/base/hash.h"
#include "lancet/ir/print.h"
#include "lancet/ops/catalogue.h"
#include "policies.h"

namespace lancet::planner {
namespace {

struct Pass {
  std::string_view name;
  std::function<ir::Program(const ir::Program&)> run;
};

// Runs the passes in order. Before the first and after each, the Program is verified; a failure names the pass.
ir::Program run_passes(ir::Program program, const std::vector<Pass>& passes, const std::string& dump_directory) {
  auto inspect = [&](std::string_view name, std::size_t index) {
    const Status status = ops::verify(program);
    LANCET_CHECK(status.ok(), "after pass {}: {}", name, status.error().message);
    if (!dump_directory.empty())
      std::ofstream(fmt::format("{}/{:02}_{}.ir", dump_directory, index, name)) << ir::print(program);
  };
  inspect("forward", 0);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    program = passes[i].run(program);
    inspect(passes[i].name, i + 1);
  }
  return program;
}

std::vector<Pass> step_passes(const PlanRequest& request) {
  std::vector<Pass> passes{{"autodiff", [&](const ir::Program& p) { return autodiff(p, request.accumulate); }}};
  if (request.fuse) passes.push_back({"fuse", fuse});
  passes.push_back(
      {"sync", [&](const ir::Program& p) { return sync(p, request.ranks, request.bucket_bytes, request.update); }});
  if (request.update)
    passes.push_back({"optimize", [&](const ir::Program& p) { return optimize(p, request.optimizer); }});
  return passes;
}

ir::Plan finish(const ir::Program& forward, ir::Plan plan, std::string_view policy, int ranks) {
  plan.header = {{"policy", std::string(policy)},
                 {"model", hex(hash64(ir::print(forward)))},
                 {"ranks", std::int64_t(ranks)},
                 {"build", std::string(cost::kernel_build())}};
  Status status = ops::verify(plan.program);
  if (status.ok()) status = ir::verify(plan);
  LANCET_CHECK(status.ok(), "the plan of policy {} is unsound: {}", policy, status.error().message);
  return plan;
}

ir::Plan plan_of(const Candidate& candidate) {
  ir::Plan plan = plan_memory(candidate.program, candidate.needed);
  plan.predicted = candidate.timeline.when;
  return plan;
}

// What the updates do, which the model's hash does not hold.
std::string describe(const OptimizeOptions& o) {
  const std::string rule = o.kind == OptimizeOptions::Kind::adamw
                               ? fmt::format("adamw beta1={} beta2={} eps={}", o.beta1, o.beta2, o.eps)
                               : fmt::format("sgd momentum={}", o.momentum);
  return fmt::format("{} weight_decay={} clip_grad={}{}{}", rule, o.weight_decay, o.clip_grad, o.guard ? " guard" : "",
                     o.masters ? std::string() : fmt::format(" stochastic rounding seed={}", o.seed));
}

ir::Plan finish_step(const ir::Program& forward, ir::Plan plan, std::string_view policy, const PlanRequest& request) {
  plan = finish(forward, std::move(plan), policy, request.ranks);
  if (request.update) plan.header.set("optimizer", describe(request.optimizer));
  return plan;
}

PolicyResult result_of(const Policy& policy, const Candidate& candidate) {
  PolicyResult result{std::string(policy.name), std::string(policy.what), candidate.how, candidate.timeline, 1, 0};
  for (const ir::Instruction& instruction : candidate.program.instructions)
    result.parts = std::max(result.parts, int(instruction.attributes.integer("parts", 1)));
  return result;
}

// Communication that is hidden takes core time, and what is not hidden takes its own: the compute lane's share is at
// least the smaller of the two. Two lanes on the wire at once gain what their common speed is above one.
Floor floor_of(const Step& step) {
  double compute = 0, core = 0, all_to_all = 0, all_reduce = 0;
  for (std::size_t i = 0; i < step.loads().size(); ++i) {
    const ir::Lane lane = step.program().instructions[i].lane;
    double& sum = lane == ir::Lane::compute ? compute : lane == ir::Lane::expert ? all_to_all : all_reduce;
    sum += step.loads()[i].ms;
    core += step.loads()[i].core_ms;
  }
  const double speed = std::max(step.costs().interference().wire_beside_wire, 0.5);
  const double both = std::min(all_to_all, all_reduce), wire = std::max(all_to_all, all_reduce) - both + both / speed;
  return {compute + std::min(core, wire), wire};
}

constexpr std::string_view automatic = "auto";

// The candidate that runs: the asked policy's, or the best for auto; sequential where that is no slower, unless the
// number of parts is forced.
std::size_t choose(const std::vector<Candidate>& candidates, const std::vector<PolicyResult>& results,
                   std::string_view asked, bool forced, std::string& why) {
  std::size_t best = 0, wanted = 0;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (candidates[i].timeline.makespan < candidates[best].timeline.makespan) best = i;
    if (results[i].policy == asked) wanted = i;
  }
  if (asked == automatic) wanted = best;
  const double sequential_ms = candidates[0].timeline.makespan, ms = candidates[wanted].timeline.makespan;
  if (wanted == 0 || ms < sequential_ms || (forced && asked != automatic)) return wanted;
  why = fmt::format("{} runs sequential: predicted {:.3f} ms against {:.3f} ms", asked, ms, sequential_ms);
  return 0;
}

}  // namespace

std::vector<std::string_view> policies() {
  std::vector<std::string_view> names;
  for (const Policy& policy : policy_table()) names.push_back(policy.name);
  names.push_back(automatic);
  return names;
}

std::vector<ir::Program> programs_to_profile(const ir::Program& forward, const PlanRequest& request) {
  return variants(run_passes(forward, step_passes(request), ""), request.partition);
}

Result<ir::Plan> make_plan(const ir::Program& forward, const PlanRequest& request, PlanReport* report) {
  const auto known = policies();
  if (std::find(known.begin(), known.end(), request.policy) == known.end())
    return config_error(
        fmt::format("overlap.policy: expected one of {}, found '{}'", fmt::join(known, ", "), request.policy));
  const ir::Program program = run_passes(forward, step_passes(request), request.dump_directory);
  if (!request.costs) {
    if (request.policy != "sequential")
      return config_error(fmt::format("overlap.policy: expected a profile for {}, found none", request.policy));
    return finish_step(forward, plan_memory_sequentially(program), "sequential", request);
  }
  const bool all = request.policy == automatic || request.compare;
  LANCET_ASSIGN(const Step step, Step::make(program, *request.costs, part_counts(request.partition)));
  std::vector<Candidate> candidates;
  PlanReport made;
  for (const Policy& policy : policy_table()) {
    if (!all && policy.name != "sequential" && policy.name != request.policy) continue;
    candidates.push_back(policy.plan(step, request.partition));
    made.policies.push_back(result_of(policy, candidates.back()));
  }
  const std::size_t chosen = choose(candidates, made.policies, request.policy, request.partition.parts > 1, made.why);
  made.chosen = made.policies[chosen].policy;
  ir::Plan plan = finish_step(forward, plan_of(candidates[chosen]), made.chosen, request);
  if (const std::string profile = request.costs->identity(); !profile.empty()) plan.header.set("profile", profile);
  plan.header.set("predicted_ms", candidates[chosen].timeline.makespan);
  plan.header.set("exposed_ms", candidates[chosen].timeline.exposed);
  if (!report) return plan;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    made.policies[i].arena_bytes =
        i == chosen ? plan.arena_bytes : plan_memory(candidates[i].program, candidates[i].needed).arena_bytes;
  made.asked = request.policy;
  made.floor = floor_of(step);
  *report = std::move(made);
  return plan;
}

Result<ir::Plan> make_forward_plan(const ir::Program& forward, int ranks) {
  const std::vector<Pass> passes{{"sync", [&](const ir::Program& p) { return sync(p, ranks, 0, false); }}};
  return finish(forward, plan_memory_sequentially(run_passes(forward, passes, "")), "sequential", ranks);
}

}  // namespace lancet::planner
