// What is made again is chosen for the step in turns, before a policy schedules it (recompute_choices.h). A policy that
// overlaps more may keep more alive at once. So two amounts are planned: as much as the step in turns needs, and as
// much as leaves the policy overlap.memory_factor of what it needs. The faster plan that fits is taken. If none does,
// the policy gets one more try, with as much less as the last plan had too much; then sequential runs.
#include "within_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lancet/cost/costs.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/schedule_report.h"
#include "policies.h"
#include "recompute_choices.h"

namespace lancet::planner {
namespace {

constexpr std::int64_t mb = 1'000'000;

// Times by the costs; by the work alone if there are none, or if they lack an op.
std::vector<double> times_of(const ir::Program& step, const cost::Costs* costs) {
  if (!costs) return work_times(step);
  const auto op_costs = cost::op_costs(*costs, step);
  if (!op_costs.ok()) return work_times(step);
  std::vector<double> times;
  for (const cost::OpCost& cost : *op_costs) times.push_back(cost.ms + costs->launch_ms());
  return times;
}

class WithinMemory {
 public:
  WithinMemory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline, const PlanMaker& make)
      : step_(step),
        request_(request),
        pipeline_(pipeline),
        make_(make),
        choices_(step, times_of(step, request.costs)),
        allowed_(request.memory_limit - schedule::resident_bytes(step)) {}

  Result<ir::Plan> run(PlanReport* report) {
    LANCET_ASSIGN(std::optional<Planned> found, by_policy());
    if (!found) {
      LANCET_ASSIGN(found, in_turns());
    }
    if (!report) return std::move(found->plan);
    if (request_.compare) {
      LANCET_ASSIGN(Planned compared, planned(found->choice, found->policy, true));
      std::swap(found->report.policies, compared.report.policies);
    }
    *report = std::move(found->report);
    report->requested = request_.overlap.policy;
    report->memory = MemoryReport{.limit = request_.memory_limit,
                                  .bytes = schedule::plan_bytes(found->plan),
                                  .all_kept = request_.memory_limit - allowed_ + choices_.all_kept_bytes(),
                                  .activations = schedule::kept_bytes(found->plan.program),
                                  .all_activations = schedule::kept_bytes(step_)};
    return std::move(found->plan);
  }

 private:
  struct Planned {
    RecomputeChoice choice;
    std::string policy;
    ir::Plan plan;
    PlanReport report;
    std::int64_t over = 0;  // bytes above the limit
    double ms() const { return plan.header.real("predicted_ms", 0); }
  };

  // The policy's fastest plan that fits; none: none of those tried does, or it is the one that in_turns() makes.
  Result<std::optional<Planned>> by_policy() {
    std::optional<Planned> best, last;
    if (request_.overlap.policy == sequential) return best;
    const auto target = [&](double factor) { return std::int64_t(double(allowed_) / factor); };
    for (const std::int64_t arena_bytes : {allowed_, target(request_.overlap.memory_factor)}) {
      const RecomputeChoice choice = choices_.within(arena_bytes);
      if (choice.arena_bytes > allowed_ || (last && last->choice.chosen == choice.chosen)) continue;
      LANCET_ASSIGN(last, planned(choice, request_.overlap.policy));
      if (last->over <= 0 && !choice.any()) return last;
      if (last->over <= 0 && (!best || last->ms() < best->ms())) best = last;
    }
    if (best || !last || last->choice.is_least) return best;
    LANCET_ASSIGN(last, planned(choices_.within(last->choice.arena_bytes - last->over), request_.overlap.policy));
    if (last->over <= 0) best = std::move(last);
    return best;
  }

  // Ends with the choice that needs least.
  Result<Planned> in_turns() {
    for (std::int64_t target = allowed_;;) {
      LANCET_ASSIGN(Planned made, planned(choices_.within(target), sequential));
      if (made.over <= 0) {
        if (request_.overlap.policy != sequential)
          made.report.why = fmt::format("{} runs sequential: no other plan within train.memory_limit_mb was found",
                                        request_.overlap.policy);
        return made;
      }
      if (made.choice.is_least) return memory_limit_too_small(schedule::plan_bytes(made.plan), request_);
      target = std::min(target, made.choice.arena_bytes) - made.over;
    }
  }

  Result<Planned> planned(const RecomputeChoice& choice, std::string_view policy, bool compare = false) {
    Planned made{.choice = choice, .policy = std::string(policy), .plan = {}, .report = {}};
    PlanRequest request = request_;
    request.overlap.policy = policy;
    request.compare = compare;
    // A search may not need more than the limit leaves.
    const double factor = double(allowed_) / double(std::max<std::int64_t>(1, choice.arena_bytes));
    request.overlap.memory_factor = std::clamp(factor, 1.0, request_.overlap.memory_factor);
    Pipeline pipeline = pipeline_;
    ir::Program step = step_;
    if (choice.any())
      step = pipeline.run("recompute", std::move(step), [&](const ir::Program&) { return choices_.program(choice); });
    LANCET_ASSIGN(made.plan, make_(std::move(step), request, std::move(pipeline), &made.report));
    made.over = schedule::plan_bytes(made.plan) - request_.memory_limit;
    return made;
  }

  const ir::Program& step_;
  const PlanRequest& request_;
  const Pipeline& pipeline_;
  const PlanMaker& make_;
  RecomputeChoices choices_;
  std::int64_t allowed_;  // bytes of the arena
};

}  // namespace

Error memory_limit_too_small(std::int64_t least_bytes, const PlanRequest& request) {
  return config_error(
      fmt::format("train.memory_limit_mb: expected at least {}, with all computed again that can be, found {}",
                  (least_bytes + mb - 1) / mb, request.memory_limit / mb));
}

Result<ir::Plan> plan_within_memory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline,
                                    const PlanMaker& make, PlanReport* report) {
  return WithinMemory(step, request, pipeline, make).run(report);
}

std::int64_t recompute_within_memory(ir::Program& step, std::int64_t resident_bytes, const PlanRequest& request,
                                     StepOrder order, Pipeline& pipeline) {
  RecomputeChoices choices(step, times_of(step, request.costs), std::move(order));
  const RecomputeChoice choice = choices.within(request.memory_limit - resident_bytes);
  if (choice.any()) step = pipeline.run("recompute", step, [&](const ir::Program&) { return choices.program(choice); });
  return resident_bytes + choice.arena_bytes;
}

}  // namespace lancet::planner
