// The step is cut once its backward pass exists and each instruction is a rank's own. Sums of gradients and updates are
// then added stage by stage, so that each has those of its own parameters. Stages are simulated, and checked, together.
#include "lancet/planner/planner.h"

#include <algorithm>
#include <utility>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/stages.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/stage_graph.h"
#include "policies.h"
#include "stage_orders.h"
#include "steps.h"
#include "within_memory.h"

namespace lancet::planner {
namespace {

using schedule::Candidate;

// A stage under way to its plan.
struct Made {
  Candidate candidate;
  Pipeline pipeline;
};

int stages_of(const ir::Mesh& mesh) { return mesh[ir::Axis::stage]; }

// The stages' programs of one micro batch, with their updates.
Result<std::vector<Made>> steps_of(const ir::Program& logical, const PlanRequest& request) {
  Pipeline pipeline(request.skip, request.keep_texts);
  LANCET_ASSIGN(const ir::Program program, with_gradients(logical, request, pipeline));
  std::vector<Made> made;
  for (passes::StageProgram& stage : passes::cut_stages(program, request.mesh, request.first_blocks)) {
    Made& one = made.emplace_back(Candidate(), pipeline);
    ir::Program step =
        one.pipeline.run("stages", program, [&](const ir::Program&) { return std::move(stage.program); });
    one.candidate = unpredicted(with_updates(std::move(step), request, one.pipeline, std::move(stage.copies)));
  }
  return made;
}

// Each stage makes again what its own share of the memory asks for. It has to hold what 1F1B holds: other orders are
// made within what is left.
Status recompute(std::vector<Made>& made, const PlanRequest& request) {
  const int stages = int(made.size());
  const auto repeated = [&](const ir::Program& step) {
    return schedule::in_micro_batches(unpredicted(step), request.micro_batches).program;
  };
  std::int64_t most = 0;
  for (int stage = 0; stage < stages; ++stage) {
    Made& one = made[std::size_t(stage)];
    const StepOrder order{
        [&](const ir::Program& step) { return arena_bytes(one_forward_one_backward(repeated(step), stage, stages)); },
        std::min(stages - stage, request.micro_batches)};
    ir::Program step = std::move(one.candidate.program);
    const std::int64_t resident = schedule::resident_bytes(repeated(step));
    most = std::max(most, recompute_within_memory(step, resident, request, order, one.pipeline));
    one.candidate = unpredicted(std::move(step));
  }
  return most <= request.memory_limit ? Status() : memory_limit_too_small(most, request);
}

void repeat(Made& made, int micro_batches) {
  if (micro_batches > 1)
    made.candidate = made.pipeline.run("micro_batches", std::move(made.candidate), [&](const Candidate& one) {
      return schedule::in_micro_batches(one, micro_batches);
    });
}

// Puts all stages in the order of the request.
Status order(std::vector<Made>& made, const PlanRequest& request) {
  std::vector<const ir::Program*> programs;
  for (const Made& one : made) programs.push_back(&one.candidate.program);
  LANCET_ASSIGN(StageOrders orders, stage_orders(programs, request));
  for (std::size_t stage = 0; stage < made.size(); ++stage)
    made[stage].candidate =
        made[stage].pipeline.run("pipeline_order", std::move(made[stage].candidate), [&](const Candidate&) {
          Candidate candidate;
          candidate.how = orders.how;
          candidate.program = std::move(orders.stages[stage].program);
          candidate.needed = std::move(orders.stages[stage].needed);
          return candidate;
        });
  return {};
}

// What no order of these instructions goes below.
double least_of(std::span<const Made> made, const PlanRequest& request) {
  std::vector<schedule::Dependencies> needed;
  for (const Made& one : made) needed.push_back(ir::dependencies(one.candidate.program));
  std::vector<schedule::StageWork> work;
  for (std::size_t stage = 0; stage < made.size(); ++stage)
    work.push_back({made[stage].candidate.program, needed[stage], made[stage].candidate.op_costs});
  return schedule::least_makespan(schedule::stage_graph(work, request.mesh, request.costs->launch_ms()), work);
}

// Sets the timelines. False if the costs lack an op, which they may.
Result<bool> predict(std::vector<Made>& made, const PlanRequest& request, StageReport& report) {
  if (!request.costs) return false;
  std::vector<schedule::StageWork> work;
  for (Made& one : made) {
    auto op_costs = cost::op_costs(*request.costs->of_stage(int(work.size())), one.candidate.program);
    if (!op_costs.ok() && request.costs_may_lack_ops) return false;
    if (!op_costs.ok()) return op_costs.error();
    one.candidate.op_costs = *std::move(op_costs);
    work.push_back({one.candidate.program, one.candidate.needed, one.candidate.op_costs});
  }
  schedule::StagesTimeline times = schedule::simulate_stages(work, request.mesh, request.costs->launch_ms());
  report.makespan = times.makespan;
  report.least = least_of(made, request);
  for (std::size_t stage = 0; stage < made.size(); ++stage) {
    report.compute.push_back(times.stages[stage].compute);
    report.bubble.push_back(times.bubble_ms(stage));
    made[stage].candidate.timeline = std::move(times.stages[stage]);
  }
  return true;
}

// Broken plans are a fault of the planner, whatever the config.
void check_together(std::span<const ir::Plan> plans, const ir::Mesh& mesh) {
  std::vector<const ir::Plan*> of_rank;
  for (int rank = 0; rank < mesh.ranks(); ++rank)
    of_rank.push_back(&plans[std::size_t(mesh.coordinate(rank, ir::Axis::stage))]);
  const Status status = ir::verify_ranks(of_rank, mesh);
  LANCET_CHECK(status.ok(), "the plans of the stages: {}", status.error().message);
}

}  // namespace

Result<std::vector<ir::Program>> stage_programs(const ir::Program& logical, const PlanRequest& request) {
  std::vector<ir::Program> programs;
  LANCET_ASSIGN(std::vector<Made> made, steps_of(logical, request));
  for (Made& one : made) programs.push_back(std::move(one.candidate.program));
  return programs;
}

Result<std::vector<ir::Plan>> make_stage_plans(const ir::Program& logical, const PlanRequest& request,
                                               PlanReport* report, StageReport* stages) {
  std::vector<ir::Plan> plans;
  if (stages_of(request.mesh) == 1) {
    LANCET_ASSIGN(ir::Plan plan, make_plan(logical, request, report));
    plans.push_back(std::move(plan));
    return plans;
  }
  LANCET_TRY(check_policy(request.overlap.policy));
  LANCET_TRY(check_skip(request.skip));
  LANCET_ASSIGN(std::vector<Made> made, steps_of(logical, request));
  if (request.memory_limit > 0) LANCET_TRY(recompute(made, request));
  for (Made& one : made) repeat(one, request.micro_batches);
  LANCET_TRY(order(made, request));
  StageReport times;
  times.how = made[0].candidate.how;
  LANCET_ASSIGN(const bool predicted, predict(made, request, times));
  for (std::size_t stage = 0; stage < made.size(); ++stage) {
    ir::Plan& plan = plans.emplace_back(plan_of(made[stage].candidate, made[stage].pipeline));
    set_step_header(plan, logical, request.overlap.policy, request.mesh, request.optimizer, request.gradient_sums);
    plan.header.set("pipeline_schedule", std::string(name(request.pipeline_schedule)));
    plan.header.set("stage", std::int64_t(stage));
    if (!predicted) continue;
    if (const std::string profile = request.costs->identity(); !profile.empty()) plan.header.set("profile", profile);
    plan.header.set("predicted_ms", times.makespan);
    plan.header.set("exposed_ms", made[stage].candidate.timeline.exposed);
  }
  check_together(plans, request.mesh);
  if (report) {
    report->passes = made[0].pipeline.runs();
    report->requested = report->chosen = request.overlap.policy;
  }
  if (stages) *stages = std::move(times);
  return plans;
}

Result<std::vector<ir::Plan>> make_forward_stage_plans(const ir::Program& logical, const ir::Mesh& mesh,
                                                       std::span<const int> first_blocks) {
  std::vector<ir::Plan> plans;
  if (stages_of(mesh) == 1) {
    LANCET_ASSIGN(ir::Plan plan, make_forward_plan(logical, mesh));
    plans.push_back(std::move(plan));
    return plans;
  }
  Pipeline common;
  common.begin(logical);
  LANCET_ASSIGN(ir::Program program, spread(logical, mesh, common));
  for (passes::StageProgram& stage : passes::cut_stages(program, mesh, first_blocks)) {
    Pipeline pipeline = common;
    ir::Program step = pipeline.run("stages", program, [&](const ir::Program&) { return std::move(stage.program); });
    step = pipeline.run("sync", std::move(step), [&](ir::Program p) { return passes::sync(p, mesh, 0, false); });
    step = folded(std::move(step), mesh, pipeline);
    Candidate candidate = pipeline.run("take_turns", std::move(step), unpredicted);
    ir::Plan& plan = plans.emplace_back(plan_of(std::move(candidate), pipeline));
    set_header(plan, logical, policy_table()[0].name, mesh);
    plan.header.set("stage", std::int64_t(plans.size()) - 1);
  }
  check_together(plans, mesh);
  return plans;
}

}  // namespace lancet::planner
