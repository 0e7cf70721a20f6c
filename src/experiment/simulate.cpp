#include <chrono>

#include "cpu_name.h"
#include "lancet/cost/hardware.h"
#include "lancet/experiment/run.h"
#include "lancet/ops/catalogue.h"
#include "lancet/train/plan.h"

namespace lancet::experiment {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

bool is_expert_work(const ir::Instruction& at) {
  return at.lane == ir::Lane::compute && at.attributes.has("tokens") && ops::kind(at) != ops::Kind::part_helper;
}

void read_schedule(const ir::Plan& plan, Outcome& outcome) {
  double forward = 0, experts = 0;
  for (std::size_t i = 0; i < plan.predicted.size(); ++i) {
    const ir::Instruction& at = plan.program.instructions[i];
    if (at.role == ir::Role::forward) forward = std::max(forward, plan.predicted[i].end);
    if (is_expert_work(at)) experts += plan.predicted[i].end - plan.predicted[i].start;
  }
  outcome.forward_ms = forward;
  outcome.experts_ms = experts;
}

}  // namespace

Result<Outcome> simulate(const Experiment& experiment, const Point& point) {
  LANCET_ASSIGN(const cost::Hardware hardware, cost::read_hardware(point.on));
  const cost::HardwareCosts costs(hardware, {point.ranks, point.hosts});
  planner::PlanReport report;
  const auto start = std::chrono::steady_clock::now();
  LANCET_ASSIGN(const ir::Plan plan, train::plan_with(point.config, point.ranks, costs, &report));
  const double planning_ms = milliseconds_since(start);
  Outcome outcome;
  outcome.runs = report.chosen;
  for (const planner::PolicyResult& result : report.policies)
    if (result.policy == report.chosen) {
      const planner::Timeline& t = result.timeline;
      outcome.times = {t.makespan, t.compute, t.all_to_all, t.all_reduce, t.communication, t.exposed};
      outcome.parts = result.parts;
    }
  read_schedule(plan, outcome);
  const std::int64_t memory = train::resident_tensor_bytes(plan.program) + plan.arena_bytes;
  outcome.memory_gib = double(memory) / (1 << 30);
  if (!costs.fits(memory)) outcome.status = "out of memory";
  if (experiment.time_planning) {
    outcome.planning_ms = planning_ms;
    outcome.place = cpu_name();
  }
  return outcome;
}

}  // namespace lancet::experiment
