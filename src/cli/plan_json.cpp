// A plan's times, memory and schedule as one JSON object: what `lancet plan --json` prints.
#include <algorithm>

#include "lancet/base/json.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/schedule_report.h"
#include "plan_report.h"

namespace lancet::cli {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const planner::PolicyResult& result) {
  const schedule::Timeline& t = result.timeline;
  return {{"policy", result.policy},
          {"step_ms", t.makespan},
          {"compute_ms", t.compute},
          {"all_to_all_ms", t.all_to_all},
          {"all_reduce_ms", t.all_reduce},
          {"communication_ms", t.communication},
          {"exposed_ms", t.exposed},
          {"parts", result.parts},
          {"arena_bytes", result.arena_bytes},
          {"schedule", result.how},
          {"fits", result.fits}};
}

ordered_json stages_of(const run::PlannedStep& planned) {
  ordered_json stages = ordered_json::array();
  for (std::size_t stage = 0; stage < planned.stages.size(); ++stage)
    stages.push_back({{"compute_ms", planned.stage_times.compute[stage]},
                      {"bubble_ms", planned.stage_times.bubble[stage]},
                      {"arena_bytes", planned.stages[stage].arena_bytes},
                      {"memory_bytes", schedule::plan_bytes(planned.stages[stage])}});
  return {{"step_ms", planned.stage_times.makespan},
          {"least_ms", planned.stage_times.least},
          {"schedule", planned.stage_times.how},
          {"stages", stages}};
}

ordered_json memory_of(const planner::MemoryReport& memory) {
  return {{"limit_bytes", memory.limit},
          {"bytes", memory.bytes},
          {"all_kept_bytes", memory.all_kept},
          {"activations_kept_bytes", memory.activations},
          {"activations_bytes", memory.all_activations}};
}

ordered_json communications_of(const ir::Plan& plan) {
  ordered_json rows = ordered_json::array();
  for (const report::Communication& row : report::communications(plan))
    if (row.predicted)
      rows.push_back({{"what", row.site},
                      {"pass", row.pass},
                      {"parts", row.parts},
                      {"ms", row.predicted->ms},
                      {"hidden_ms", row.predicted->hidden_ms}});
  return rows;
}

// The time of what is recomputed in the backward pass, in all and beside communication.
std::pair<double, double> recomputed_ms(const ir::Plan& plan) {
  double ms = 0, beside_ms = 0;
  for (const schedule::RecomputedSite& site : schedule::recomputed_sites(plan.program, plan.predicted))
    ms += site.ms, beside_ms += site.beside_ms;
  return {ms, beside_ms};
}

// The end of the forward pass, of the first micro batch, and the sum of all work of experts.
std::pair<double, double> forward_and_experts_ms(const ir::Plan& plan) {
  double forward = 0, experts = 0;
  for (std::size_t i = 0; i < plan.predicted.size(); ++i) {
    const ir::Instruction& at = plan.program.instructions[i];
    if (at.role == ir::Role::forward && at.micro_batch == 0) forward = std::max(forward, plan.predicted[i].end);
    if (ops::is_of_experts(at)) experts += plan.predicted[i].end - plan.predicted[i].start;
  }
  return {forward, experts};
}

}  // namespace

std::string plan_json(const run::PlannedStep& planned) {
  const planner::PlanReport& report = planned.report;
  ordered_json policies = ordered_json::array();
  for (const planner::PolicyResult& result : report.policies) policies.push_back(json_of(result));
  const cost::Routing& routing = planned.routing;
  const double slots = routing.loads ? routing.loads->model().slots : routing.capacity;
  ordered_json out{{"build", run::simulator_build()},
                   {"costs", planned.costs},
                   {"requested", report.requested},
                   {"chosen", report.chosen},
                   {"why", report.why},
                   {"policies", policies},
                   {"bound_ms", nullptr},
                   {"memory_bytes", planned.memory},
                   {"available_bytes", nullptr},
                   {"fits", true},
                   {"planning_ms", planned.planning_ms},
                   {"imbalance", planned.routing.imbalance},
                   {"padded", planned.routing.padded},
                   {"balanced_ms", planned.balanced_ms ? ordered_json(*planned.balanced_ms) : ordered_json()},
                   {"fullest", planned.routing.fullest()},
                   {"kept", planned.routing.kept() * std::min(slots, 1.0)}};
  if (report.lower_bound.ms() > 0) out["bound_ms"] = report.lower_bound.ms();
  if (planned.available_gib) {
    out["available_bytes"] = *planned.available_gib * (1 << 30);
    out["fits"] = double(planned.memory) <= *planned.available_gib * (1 << 30);
  }
  if (!planned.stages.empty()) {
    if (planned.stage_times.least > 0) out["bound_ms"] = planned.stage_times.least;
    out["pipeline"] = stages_of(planned);
  } else {
    const auto [forward, experts] = forward_and_experts_ms(planned.plan);
    out["forward_ms"] = forward, out["experts_ms"] = experts;
    const auto [recomputed, beside] = recomputed_ms(planned.plan);
    out["recomputed_ms"] = recomputed, out["recomputed_beside_ms"] = beside;
    out["communications"] = communications_of(planned.plan);
    if (report.memory) out["memory"] = memory_of(*report.memory);
  }
  return json_text(out, {.indent = 1}) + "\n";
}

}  // namespace lancet::cli
