// The step is cut once its backward pass exists and each instruction is a rank's own. Sums of gradients and updates are
// then added stage by stage, so that each has those of its own parameters. Stages are simulated, and checked, together.
#include <fmt/format.h>
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/stage_graph.h"
#include "policies.h"
#include "steps.h"
#include "within_memory.h"

namespace lancet::planner {

namespace {

// The orders of all stages' instructions under train.pipeline_schedule.
struct StageOrders {
  std::vector<schedule::PipelineOrder> stages;
  std::string how;  // the schedule; of a search, also what it found
};

using config::PipelineSchedule;
using schedule::Candidate;
using Orders = std::vector<schedule::PipelineOrder>;
using OpCosts = std::vector<std::vector<cost::OpCost>>;  // by stage and instruction

// The order of one stage's program.
schedule::PipelineOrder one_forward_one_backward(const ir::Program& program, int stage, int stages) {
  return schedule::in_pipeline_order(program, PipelineSchedule::one_forward_one_backward, stage, stages, {});
}

std::int64_t arena_bytes(const schedule::PipelineOrder& order) {
  return schedule::arena_bytes(order.program, order.needed);
}

// Nothing if there are no costs, or if they lack an op, which they may.
Result<std::optional<OpCosts>> op_costs_of(std::span<const ir::Program* const> programs, const PlanRequest& request) {
  OpCosts of_stages;
  if (!request.costs) return std::optional<OpCosts>();
  for (const ir::Program* program : programs) {
    auto costs = cost::op_costs(*request.costs->of_stage(int(of_stages.size())), *program);
    if (!costs.ok() && request.costs_may_lack_ops) return std::optional<OpCosts>();
    if (!costs.ok()) return costs.error();
    of_stages.push_back(*std::move(costs));
  }
  return std::optional(std::move(of_stages));
}

class Stages {
 public:
  Stages(std::span<const ir::Program* const> programs, const PlanRequest& request)
      : programs_(programs), request_(request) {
    std::int64_t most = 0;
    for (int stage = 0; stage < count(); ++stage) {
      plain_.push_back(one_forward_one_backward(*programs_[std::size_t(stage)], stage, count()));
      if (request.pipeline_schedule != PipelineSchedule::one_forward_one_backward && request.memory_limit == 0)
        most = std::max(most, arena_bytes(plain_.back()));
    }
    for (int stage = 0; stage < count(); ++stage) most_bytes_.push_back(most_arena_bytes(stage, most));
  }

  // 1F1B.
  StageOrders plain() const { return {plain_, said()}; }

  Result<StageOrders> zero_bubble() const {
    LANCET_ASSIGN(const auto costs, op_costs_of(programs_, request_));
    if (!costs) return untimed();
    Found zero = shortest_delayed();
    if (is_better({plain_, makespan_of(plain_)}, zero)) return StageOrders{plain_, said("1f1b")};
    return StageOrders{std::move(zero.orders), said()};
  }

  Result<StageOrders> searched() const {
    LANCET_ASSIGN(const auto costs, op_costs_of(programs_, request_));
    if (!costs) return untimed();
    std::vector<schedule::Dependencies> needed;
    std::vector<schedule::StageWork> work;
    for (const ir::Program* program : programs_) needed.push_back(ir::dependencies(*program));
    for (std::size_t stage = 0; stage < programs_.size(); ++stage)
      work.push_back({*programs_[stage], needed[stage], (*costs)[stage]});
    Found zero = shortest_delayed(), plain{plain_, makespan_of(plain_)};
    const bool is_plain = !is_better(zero, plain);
    Found& known = is_plain ? plain : zero;
    auto found = schedule::search_stages(work, request_.mesh, request_.costs->launch_ms(), most_bytes_);
    if (found && (found->makespan < known.ms || !fits(known.orders)))
      return StageOrders{std::move(found->stages), said("a list schedule of all stages")};
    return StageOrders{std::move(known.orders), said(is_plain ? "1f1b" : "zero_bubble")};
  }

 private:
  struct Found {
    Orders orders;
    double ms;
  };

  int count() const { return int(programs_.size()); }

  bool fits(const Orders& orders) const {
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      if (arena_bytes(orders[stage]) > most_bytes_[stage]) return false;
    return true;
  }
  // What fits is better, then what is shorter.
  bool is_better(const Found& a, const Found& b) const {
    return std::pair(!fits(a.orders), a.ms) < std::pair(!fits(b.orders), b.ms);
  }

  // most_plain: the largest arena of all stages under 1F1B, in bytes. Unlike devices have memories of their own.
  std::int64_t most_arena_bytes(int stage, std::int64_t most_plain) const {
    const std::int64_t resident = schedule::resident_bytes(*programs_[std::size_t(stage)]);
    const std::int64_t most = request_.memory_limit > 0 ? request_.memory_limit - resident : most_plain;
    const auto free = request_.costs ? request_.costs->of_stage(stage)->free_bytes() : std::nullopt;
    return free ? std::min(most, *free - resident) : most;
  }

  std::string said(std::string_view found = "") const {
    return fmt::format("{}{}{}", name(request_.pipeline_schedule), found.empty() ? "" : ": ", found);
  }
  // Without the times of ops: zero bubble, which is close to the best without them, or 1F1B if that does not fit or the
  // stages interleave.
  StageOrders untimed() const {
    constexpr std::string_view why = "since the time of an op is not known";
    if (request_.pipeline_schedule == PipelineSchedule::interleaved)
      return {plain_, said(fmt::format("1f1b, {}", why))};
    Orders zero = delayed(true);
    const bool asked = request_.pipeline_schedule == PipelineSchedule::zero_bubble;
    if (!fits(zero)) return {plain_, said("1f1b, whose memory zero_bubble exceeds")};
    return {std::move(zero), asked ? said() : said(fmt::format("zero_bubble, {}", why))};
  }

  // Zero bubble with the longest delays of weight gradients whose arenas are small enough. dealt: over all-to-alls.
  Orders delayed(bool dealt) const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage)
      for (int delay = stage; delay >= 0; --delay) {
        orders.push_back(schedule::in_pipeline_order(*programs_[std::size_t(stage)], PipelineSchedule::zero_bubble,
                                                     stage, count(), {delay, dealt}));
        if (delay == 0 || arena_bytes(orders.back()) <= most_bytes_[std::size_t(stage)]) break;
        orders.pop_back();
      }
    return orders;
  }

  Found shortest_delayed() const {
    Orders dealt = delayed(true), apart = delayed(false);
    const double dealt_ms = makespan_of(dealt), apart_ms = makespan_of(apart);
    if (dealt_ms <= apart_ms) return {std::move(dealt), dealt_ms};
    return {std::move(apart), apart_ms};
  }

  double makespan_of(const Orders& orders) const {
    std::vector<const ir::Program*> programs;
    for (const schedule::PipelineOrder& order : orders) programs.push_back(&order.program);
    const OpCosts op_costs = op_costs_of(programs, request_).value().value();
    std::vector<schedule::StageWork> work;
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      work.push_back({orders[stage].program, orders[stage].needed, op_costs[stage]});
    return schedule::simulate_stages(work, request_.mesh, request_.costs->launch_ms()).makespan;
  }

  const std::span<const ir::Program* const> programs_;
  const PlanRequest& request_;
  Orders plain_;
  std::vector<std::int64_t> most_bytes_;  // by stage: of its arena
};

// programs: of all stages, with all micro batches. Under all but 1f1b no arena is larger than the largest under 1F1B,
// nor than request.memory_limit and the stage's device leave, if such an order is found. 1F1B of programs with several
// chunks is interleaved. With all costs known, of the orders that keep to this none is predicted shorter than the one
// that is taken: zero bubble takes the shorter of itself, with weight gradients beside all-to-alls or not, and 1F1B;
// searched and interleaved also try a list schedule. If the costs lack an op, which they may, weight gradients run
// beside all-to-alls, searched is zero bubble and interleaved 1F1B. Errors: an op that they may not lack.
Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request) {
  const Stages stages(programs, request);
  if (request.pipeline_schedule == PipelineSchedule::one_forward_one_backward) return stages.plain();
  if (request.pipeline_schedule == PipelineSchedule::zero_bubble) return stages.zero_bubble();
  return stages.searched();
}

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

std::vector<const ir::Program*> programs_of(const std::vector<Made>& made) {
  std::vector<const ir::Program*> programs;
  for (const Made& one : made) programs.push_back(&one.candidate.program);
  return programs;
}

// Puts all stages in the order of the request.
Status order(std::vector<Made>& made, const PlanRequest& request) {
  LANCET_ASSIGN(StageOrders orders, stage_orders(programs_of(made), request));
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
  LANCET_ASSIGN(std::optional<OpCosts> op_costs, op_costs_of(programs_of(made), request));
  if (!op_costs) return false;
  std::vector<schedule::StageWork> work;
  for (Made& one : made) {
    one.candidate.op_costs = std::move((*op_costs)[work.size()]);
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
    set_step_header(plan, logical, request.overlap.policy, request);
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

Result<std::vector<ir::Plan>> make_forward_plans(const ir::Program& logical, const ir::Mesh& mesh,
                                                 std::span<const int> first_blocks) {
  std::vector<ir::Plan> plans;
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
    set_header(plan, logical, sequential, mesh);
    if (mesh[ir::Axis::stage] > 1) plan.header.set("stage", std::int64_t(plans.size()) - 1);
  }
  if (plans.size() > 1) check_together(plans, mesh);
  return plans;
}

}  // namespace lancet::planner
