// Simulates a point: plans its step with the costs of the hardware file, overridden by measured ones, and reads the
// predicted times and the memory from the plan and the planner's report. A point with a plan file is that plan,
// simulated with the same costs.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "lancet/cost/hardware.h"
#include "lancet/experiment/run.h"
#include "lancet/ops/catalogue.h"
#include "lancet/planning/from_config.h"
#include "lancet/planning/plan_file.h"
#include "lancet/planning/planned_step.h"
#include "lancet/schedule/candidate.h"
#include "lancet/schedule/plan_memory.h"
#include "machine.h"

namespace lancet::experiment {
namespace {

// Returns the processor time of this thread, which does all the planning, so that other load does not count.
double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
}

void read_schedule(const ir::Plan& plan, Outcome& outcome) {
  double forward = 0, experts = 0;
  for (std::size_t i = 0; i < plan.predicted.size(); ++i) {
    const ir::Instruction& at = plan.program.instructions[i];
    if (at.role == ir::Role::forward && at.micro_batch == 0) forward = std::max(forward, plan.predicted[i].end);
    if (ops::is_of_experts(at)) experts += plan.predicted[i].end - plan.predicted[i].start;
  }
  outcome.forward_ms = forward;
  outcome.experts_ms = experts;
}

// Describes the measured costs in use: "ops and communication of AMD EPYC ...; 30 of the step's 34 ops".
std::string measured_in(const ir::Plan& plan, const cost::Profile& measured) {
  std::set<std::string> ops, known;
  for (const ir::Instruction& at : plan.program.instructions) {
    if (at.stream != ir::Stream::compute || !cost::is_local(plan.program, at)) continue;
    const std::string key = cost::op_key(plan.program, at);
    ops.insert(key);
    if (measured.compute_ms(key)) known.insert(key);
  }
  return fmt::format("{} of {}, {}; {} of the step's {} ops",
                     measured.network.measured() ? "ops and communication" : "ops", to_string(measured.machine.device),
                     measured.identity(), known.size(), ops.size());
}

Times times_of(const schedule::Timeline& t) {
  return {t.makespan, t.compute, t.all_to_all, t.all_reduce, t.communication, t.exposed};
}

// Simulates the order and the waits of the point's plan file. Its own predictions are replaced.
Result<ir::Plan> plan_in_file(const Point& point, const cost::Costs& costs, Outcome& outcome) {
  LANCET_ASSIGN(ir::Plan plan, planning::read_plan(point.plan, point.config, point.ranks));
  LANCET_ASSIGN(const schedule::Timeline t, schedule::simulate(plan, costs));
  outcome.runs = "a plan file";
  outcome.times = times_of(t);
  outcome.parts = schedule::most_parts(plan.program);
  plan.predicted = t.when;
  return plan;
}

// Plans the point's step by its policy.
Result<ir::Plan> plan_by_policy(const Point& point, const cost::Costs& costs, Outcome& outcome) {
  planner::PlanReport report;
  LANCET_ASSIGN(ir::Plan plan, planning::plan_step(point.config, point.ranks, {.costs = &costs}, &report));
  outcome.runs = report.chosen;
  outcome.bound_ms = report.lower_bound.ms();
  for (const planner::PolicyResult& result : report.policies)
    if (result.policy == report.chosen) {
      outcome.times = times_of(result.timeline);
      outcome.parts = result.parts;
    }
  return plan;
}

}  // namespace

Result<Outcome> simulate(const Experiment& experiment, const Point& point) {
  LANCET_ASSIGN(const cost::Hardware hardware, cost::read_hardware(point.hardware()));
  const cost::HardwareCosts costs(hardware, {point.ranks, point.hosts, config::mesh_of(point.config, point.ranks)},
                                  point.measured ? std::optional(*point.measured) : std::nullopt, point.spread);
  Outcome outcome;
  const double start = processor_ms();
  LANCET_ASSIGN(const ir::Plan plan,
                point.plan.empty() ? plan_by_policy(point, costs, outcome) : plan_in_file(point, costs, outcome));
  const double planning_ms = processor_ms() - start;
  read_schedule(plan, outcome);
  if (point.measured) outcome.profile = measured_in(plan, *point.measured);
  const std::int64_t memory = schedule::plan_bytes(plan);
  outcome.memory_gib = double(memory) / (1 << 30);
  if (!costs.fits(memory)) outcome.status = "out of memory";
  if (experiment.time_planning) {
    outcome.planning_ms = planning_ms;
    outcome.place = machine_label(1);
  }
  return outcome;
}

}  // namespace lancet::experiment
