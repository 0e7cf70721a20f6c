// The step is cut once its backward pass exists and each instruction is a rank's own. Sums of gradients and updates are
// then added stage by stage, so that each has those of its own parameters. The policy schedules each stage's step of
// one micro batch as it does a step without stages; its schedule is repeated for all micro batches and put in the order
// of the pipeline schedule. Stages are simulated, and checked, together. A stage in which the policy's schedule needs
// too much memory runs without overlap, and so do all where the policy is not predicted to be shorter.
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

using config::PipelineSchedule;
using schedule::Candidate;
using Orders = std::vector<schedule::PipelineOrder>;
using OpCosts = std::vector<std::vector<cost::OpCost>>;  // by stage and instruction

// The orders of all stages' instructions under train.pipeline_schedule.
struct StageOrders {
  Orders stages;
  std::string how;  // the schedule; of a search, also what it found
  double ms = 0;    // with all costs known
  bool fits = true;

  // What fits is better, then what is shorter.
  bool is_better(const StageOrders& other) const { return std::pair(!fits, ms) < std::pair(!other.fits, other.ms); }
};

// The order of one stage's micro batches.
schedule::PipelineOrder one_forward_one_backward(const Candidate& all, int stage, int stages) {
  return schedule::in_pipeline_order(all.program, all.needed, PipelineSchedule::one_forward_one_backward, stage, stages,
                                     {});
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

// How much the arena of each stage may take: the budget of its rank less what that holds anyway. Without a budget, and
// for a comparison by overlap.memory_factor, a rank may take that times what the largest one takes under 1F1B.
// sequential: the micro batches of each stage, without overlap.
std::vector<std::int64_t> most_arena_bytes(std::span<const Made> sequential, const PlanRequest& request) {
  std::vector<std::int64_t> resident, most;
  std::int64_t largest = 0;
  const double factor = std::max(1.0, request.overlap.memory_factor);
  for (const Made& one : sequential) {
    const int stage = int(resident.size());
    resident.push_back(schedule::resident_bytes(one.candidate.program));
    const auto order = one_forward_one_backward(one.candidate, stage, int(sequential.size()));
    largest = std::max(largest, resident.back() + std::int64_t(factor * double(arena_bytes(order))));
    PlanRequest of_stage = request;
    const auto costs = request.costs ? request.costs->of_stage(stage) : nullptr;
    of_stage.costs = costs.get();
    most.push_back(of_stage.budget());
  }
  for (std::size_t stage = 0; stage < resident.size(); ++stage) {
    const bool compares = request.overlap.memory_factor > 0 && request.memory_limit == 0;
    if (most[stage] == 0 || compares) most[stage] = std::min(largest, most[stage] == 0 ? largest : most[stage]);
    most[stage] -= resident[stage];
  }
  return most;
}

schedule::RankClass class_of(int stage, const ir::Program& program, const schedule::Dependencies& needed,
                             std::span<const cost::OpCost> op_costs, const PlanRequest& request) {
  const auto costs = request.costs->of_stage(stage);
  return {program, needed, op_costs, costs->interference(), costs->launch_ms()};
}

// The stages of a search, which orders their instructions itself.
struct Work {
  Work(std::span<const Made> made, const PlanRequest& request) {
    std::vector<const ir::Program*> programs;
    for (const Made& one : made) {
      programs.push_back(&one.candidate.program);
      needed.push_back(ir::dependencies(one.candidate.program));
    }
    costs = op_costs_of(programs, request).value().value();
    for (std::size_t stage = 0; stage < programs.size(); ++stage)
      work.push_back(class_of(int(stage), *programs[stage], needed[stage], costs[stage], request));
  }

  std::vector<schedule::Dependencies> needed;
  OpCosts costs;
  std::vector<schedule::RankClass> work;
};

// Puts the micro batches of all stages, as a policy schedules them, in the order of request.pipeline_schedule. Under
// all but 1f1b no arena is larger than `most_bytes` of its stage, if such an order is found. 1F1B of programs with
// several chunks is interleaved.
class Stages {
 public:
  // ones: of one micro batch.
  Stages(std::span<const Made> ones, std::span<const Made> made, std::span<const std::int64_t> most_bytes,
         const PlanRequest& request)
      : ones_(ones), made_(made), most_bytes_(most_bytes), request_(request) {}

  // If the costs lack an op, which they may: weight gradients run beside all-to-alls, searched is zero bubble and
  // interleaved 1F1B, as zero bubble is where it does not fit.
  StageOrders untimed() const {
    constexpr std::string_view why = "since the time of an op is not known";
    if (asked() == PipelineSchedule::one_forward_one_backward) return {plain(), said()};
    if (asked() == PipelineSchedule::interleaved) return {plain(), said(fmt::format("1f1b, {}", why))};
    Orders zero = delayed(true);
    if (!fits(zero)) return {plain(), said("1f1b, whose memory zero_bubble exceeds")};
    return {std::move(zero),
            asked() == PipelineSchedule::zero_bubble ? said() : said(fmt::format("zero_bubble, {}", why))};
  }

  // With all costs known. 1F1B or, unless that is asked for, the best of it and of zero bubble with weight gradients
  // beside all-to-alls or not.
  StageOrders passes_in_order() const {
    const bool is_plain = asked() == PipelineSchedule::one_forward_one_backward;
    StageOrders best = timed(plain(), is_plain ? said() : said("1f1b"));
    if (is_plain) return best;
    const std::string how = asked() == PipelineSchedule::zero_bubble ? said() : said("zero_bubble");
    StageOrders apart = timed(delayed(false), how), dealt = timed(delayed(true), how);
    StageOrders& zero = dealt.ms <= apart.ms ? dealt : apart;
    return best.is_better(zero) ? best : zero;
  }

  // Under searched and interleaved, a list schedule of all stages; nothing if none fits.
  std::optional<StageOrders> listed() const {
    if (asked() != PipelineSchedule::searched && asked() != PipelineSchedule::interleaved) return std::nullopt;
    // A stage of a full pipeline holds at most as many micro batches as there are stages.
    const int few = std::max(8, 2 * count());
    std::vector<Made> sample;
    for (const Made& one : few < request_.micro_batches ? ones_ : std::span<const Made>()) {
      sample.push_back(one);
      repeat(sample.back(), few);
    }
    const Work all(made_, request_), some(sample, request_);
    auto found = schedule::search_stages(all.work, sample.empty() ? all.work : some.work, request_.mesh, most_bytes_);
    if (!found) return std::nullopt;
    return StageOrders{std::move(found->stages), said("a list schedule of all stages"), found->makespan};
  }

 private:
  int count() const { return int(made_.size()); }
  const Candidate& of(int stage) const { return made_[std::size_t(stage)].candidate; }
  PipelineSchedule asked() const { return request_.pipeline_schedule; }

  std::string said(std::string_view found = "") const {
    return fmt::format("{}{}{}", name(asked()), found.empty() ? "" : ": ", found);
  }

  Orders plain() const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage) orders.push_back(one_forward_one_backward(of(stage), stage, count()));
    return orders;
  }

  // Zero bubble with the longest delays of weight gradients whose arenas are small enough. dealt: over all-to-alls.
  Orders delayed(bool dealt) const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage)
      for (int delay = stage; delay >= 0; --delay) {
        orders.push_back(schedule::in_pipeline_order(of(stage).program, of(stage).needed, PipelineSchedule::zero_bubble,
                                                     stage, count(), {delay, dealt}));
        if (delay == 0 || arena_bytes(orders.back()) <= most_bytes_[std::size_t(stage)]) break;
        orders.pop_back();
      }
    return orders;
  }

  bool fits(const Orders& orders) const {
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      if (arena_bytes(orders[stage]) > most_bytes_[stage]) return false;
    return true;
  }

  StageOrders timed(Orders orders, std::string how) const {
    std::vector<const ir::Program*> programs;
    for (const schedule::PipelineOrder& order : orders) programs.push_back(&order.program);
    const OpCosts op_costs = op_costs_of(programs, request_).value().value();
    std::vector<schedule::RankClass> work;
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      work.push_back(class_of(int(stage), orders[stage].program, orders[stage].needed, op_costs[stage], request_));
    const double ms = schedule::simulate(work, request_.mesh).makespan;
    const bool fit = fits(orders);
    return {std::move(orders), std::move(how), ms, fit};
  }

  const std::span<const Made> ones_, made_;
  const std::span<const std::int64_t> most_bytes_;  // by stage: of its arena
  const PlanRequest& request_;
};

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

// Each stage recomputes what its own budget asks for. It has to hold what 1F1B holds: other orders are made within what
// is left.
Status recompute(std::vector<Made>& made, const PlanRequest& request) {
  const int stages = int(made.size());
  const auto repeated = [&](const ir::Program& step) {
    return schedule::in_micro_batches(unpredicted(step), request.micro_batches);
  };
  std::int64_t most = 0;
  for (int stage = 0; stage < stages; ++stage) {
    Made& one = made[std::size_t(stage)];
    const StepOrder order{
        [&](const ir::Program& step) { return arena_bytes(one_forward_one_backward(repeated(step), stage, stages)); },
        std::min(stages - stage, request.micro_batches)};
    PlanRequest of_stage = request;
    const auto costs = request.costs ? request.costs->of_stage(stage) : nullptr;
    of_stage.costs = costs.get();
    if (of_stage.budget() == 0) continue;
    ir::Program step = std::move(one.candidate.program);
    const std::int64_t resident = schedule::resident_bytes(repeated(step).program);
    most = std::max(most, recompute_within_memory(step, resident, of_stage, order, one.pipeline));
    one.candidate = unpredicted(std::move(step));
  }
  return request.memory_limit == 0 || most <= request.memory_limit ? Status() : memory_limit_too_small(most, request);
}

std::vector<const ir::Program*> programs_of(const std::vector<Made>& made) {
  std::vector<const ir::Program*> programs;
  for (const Made& one : made) programs.push_back(&one.candidate.program);
  return programs;
}

// All stages as a policy schedules their micro batches.
struct Tried {
  std::string_view policy;
  std::vector<Made> ones, made;  // by stage: one micro batch, and all
};

// Without overlap, by the policy of the request, and by those that it contains: the shortest schedule of a micro batch
// alone need not be the best of those in flight. A stage in which a policy's 1F1B needs too much memory runs without
// overlap. steps: of one micro batch. Error: an op that the costs lack.
Result<std::vector<Tried>> by_policies(const std::vector<Made>& steps, Tried sequential,
                                       std::span<const std::int64_t> most_bytes, const PlanRequest& request) {
  std::vector<Tried> tried{std::move(sequential)};
  const Policy& asked = *find_policy(request.overlap.policy);
  std::vector<std::string_view> names{asked.name};
  names.insert(names.end(), asked.from.begin(), asked.from.end());
  std::erase(names, planner::sequential);
  for (const std::string_view name : names) tried.push_back({name, {}, {}});
  for (std::size_t stage = 0; stage < steps.size() && tried.size() > 1; ++stage) {
    const auto costs = request.costs->of_stage(int(stage));
    LANCET_ASSIGN(const schedule::Step step,
                  schedule::Step::make(steps[stage].candidate.program, *costs, schedule::part_counts(request.overlap)));
    // Each micro batch in flight may take as much more than without overlap as all of them may.
    PlanRequest of_stage = request;
    const auto plain = one_forward_one_backward(tried[0].made[stage].candidate, int(stage), int(steps.size()));
    of_stage.overlap.memory_factor = std::max(1.0, double(most_bytes[stage]) / double(arena_bytes(plain)));
    std::vector<Made> ones = schedule_micro_batch(step, names, of_stage, steps[stage].pipeline);
    for (std::size_t i = 1; i < tried.size(); ++i) {
      Made &one = ones[i - 1], all = one;
      repeat(all, request.micro_batches);
      const auto order = one_forward_one_backward(all.candidate, int(stage), int(steps.size()));
      const bool fits = arena_bytes(order) <= most_bytes[stage];
      tried[i].ones.push_back(fits ? std::move(one) : tried[0].ones[stage]);
      tried[i].made.push_back(fits ? std::move(all) : tried[0].made[stage]);
    }
  }
  return tried;
}

// Schedules all stages by the policy of the request, in the order of its pipeline schedule. With all costs known, no
// order that was tried and fits is shorter than the one that is taken.
Result<StageOrders> order(std::vector<Made>& made, const PlanRequest& request, PlanReport& report) {
  std::vector<Made> all = made;
  for (Made& one : all) repeat(one, request.micro_batches);
  LANCET_ASSIGN(const std::optional<OpCosts> op_costs, op_costs_of(programs_of(all), request));
  const std::vector<std::int64_t> most = most_arena_bytes(all, request);
  report.requested = request.overlap.policy;
  report.chosen = sequential;
  if (!op_costs) {
    if (find_policy(request.overlap.policy)->name != sequential)
      return config_error(fmt::format("overlap.policy: expected a profile for {}, found none", request.overlap.policy));
    made = std::move(all);
    return Stages(made, made, most, request).untimed();
  }
  LANCET_ASSIGN(std::vector<Tried> tried, by_policies(made, {sequential, made, std::move(all)}, most, request));
  // A forced number of parts takes the place of whole instructions, however long.
  const auto is_forced = [&](const Tried& by) {
    return request.overlap.parts > 1 && std::ranges::any_of(by.made, [](const Made& one) {
             return schedule::most_parts(one.candidate.program) > 1;
           });
  };
  std::optional<StageOrders> best;
  Tried* chosen = nullptr;
  const auto try_orders = [&](Tried& by, std::optional<StageOrders> orders) {
    if (!orders) return;
    const bool forced = is_forced(by), was_forced = chosen && is_forced(*chosen);
    if (best && (forced != was_forced ? was_forced : !orders->is_better(*best))) return;
    best = std::move(orders);
    chosen = &by;
  };
  const auto stages = [&](const Tried& by) { return Stages(by.ones, by.made, most, request); };
  for (Tried& by : tried) try_orders(by, stages(by).passes_in_order());
  Tried& known = *chosen;
  try_orders(tried[0], stages(tried[0]).listed());
  if (&known != &tried[0]) try_orders(known, stages(known).listed());
  report.chosen = chosen->policy;
  if (chosen == &tried[0] && tried.size() > 1)
    report.why = fmt::format("{} runs sequential: nothing is predicted to be shorter", request.overlap.policy);
  made = std::move(chosen->made);
  return *std::move(best);
}

// What no order of these instructions goes below.
double least_of(std::span<const Made> made, const PlanRequest& request) {
  const Work all(made, request);
  return schedule::least_makespan(schedule::stage_graph(all.work, request.mesh), all.work);
}

// Sets the timelines. False if the costs lack an op, which they may.
Result<bool> predict(std::vector<Made>& made, const PlanRequest& request, StageReport& report) {
  LANCET_ASSIGN(std::optional<OpCosts> op_costs, op_costs_of(programs_of(made), request));
  if (!op_costs) return false;
  std::vector<schedule::RankClass> work;
  for (Made& one : made) {
    Candidate& all = one.candidate;
    all.op_costs = std::move((*op_costs)[work.size()]);
    work.push_back(class_of(int(work.size()), all.program, all.needed, all.op_costs, request));
  }
  schedule::StagesTimeline times = schedule::simulate(work, request.mesh);
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
  LANCET_TRY(recompute(made, request));
  PlanReport of_order;
  LANCET_ASSIGN(StageOrders orders, order(made, request, of_order));
  StageReport times;
  times.how = orders.how;
  for (std::size_t stage = 0; stage < made.size(); ++stage)
    made[stage].candidate =
        made[stage].pipeline.run("pipeline_order", std::move(made[stage].candidate), [&](const Candidate&) {
          Candidate candidate;
          candidate.program = std::move(orders.stages[stage].program);
          candidate.needed = std::move(orders.stages[stage].needed);
          return candidate;
        });
  LANCET_ASSIGN(const bool predicted, predict(made, request, times));
  for (std::size_t stage = 0; stage < made.size(); ++stage) {
    ir::Plan& plan = plans.emplace_back(plan_of(made[stage].candidate, made[stage].pipeline));
    set_step_header(plan, logical, of_order.chosen, request);
    plan.header.set("pipeline_schedule", std::string(name(request.pipeline_schedule)));
    plan.header.set("stage", std::int64_t(stage));
    if (!predicted) continue;
    if (const std::string profile = request.costs->identity(); !profile.empty()) plan.header.set("profile", profile);
    plan.header.set("predicted_ms", times.makespan);
    plan.header.set("exposed_ms", made[stage].candidate.timeline.exposed);
  }
  check_together(plans, request.mesh);
  of_order.passes = made[0].pipeline.runs();
  if (report) *report = std::move(of_order);
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
