// Simulates a point: plans its step with the costs of the hardware file, overridden by measured ones, and reads the
// predicted times and the memory from the plan and the planner's report.
#include <fmt/format.h>

#include <ctime>
#include <set>

#include "lancet/cost/hardware.h"
#include "lancet/experiment/run.h"
#include "lancet/ops/catalogue.h"
#include "lancet/planning/from_config.h"
#include "lancet/planning/planned_step.h"
#include "machine.h"

namespace lancet::experiment {
namespace {

// Returns the processor time of this thread, which does all the planning, so that other load does not count.
double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
}

bool is_expert_work(const ir::Instruction& at) {
  return at.stream == ir::Stream::compute && ops::is_over_expert_rows(at) && ops::kind(at) != ops::Kind::part_helper;
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

}  // namespace

Result<Outcome> simulate(const Experiment& experiment, const Point& point) {
  LANCET_ASSIGN(const cost::Hardware hardware, cost::read_hardware(point.on));
  const cost::HardwareCosts costs(hardware, {point.ranks, point.hosts},
                                  point.measured ? std::optional(*point.measured) : std::nullopt, point.spread);
  planner::PlanReport report;
  const double start = processor_ms();
  LANCET_ASSIGN(const ir::Plan plan, planning::plan_step(point.config, point.ranks, {.costs = &costs}, &report));
  const double planning_ms = processor_ms() - start;
  Outcome outcome;
  outcome.runs = report.chosen;
  for (const planner::PolicyResult& result : report.policies)
    if (result.policy == report.chosen) {
      const schedule::Timeline& t = result.timeline;
      outcome.times = {t.makespan, t.compute, t.all_to_all, t.all_reduce, t.communication, t.exposed};
      outcome.parts = result.parts;
    }
  read_schedule(plan, outcome);
  if (point.measured) outcome.profile = measured_in(plan, *point.measured);
  const std::int64_t memory = planning::resident_tensor_bytes(plan.program) + plan.arena_bytes;
  outcome.memory_gib = double(memory) / (1 << 30);
  if (!costs.fits(memory)) outcome.status = "out of memory";
  if (experiment.time_planning) {
    outcome.planning_ms = planning_ms;
    outcome.place = machine_label(1);
  }
  return outcome;
}

}  // namespace lancet::experiment
