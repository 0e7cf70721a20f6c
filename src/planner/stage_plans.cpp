// The step is cut once its backward pass exists and each instruction is a rank's own. Sums of gradients and updates are
// then added stage by stage, so that each has those of its own parameters. The policy schedules each stage's step of
// one micro batch as it does a step without stages; its schedule is repeated for all micro batches and put in the order
// of the pipeline schedule. Stages are simulated, and checked, together. A stage in which the policy's schedule needs
// too much memory runs without overlap, and so do all where the policy is not predicted to be shorter.
#include <fmt/format.h>
#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
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
#include "stage_orders.h"
#include "steps.h"
#include "within_memory.h"

namespace lancet::planner {

namespace {

using schedule::Candidate;

// The memory of a rank, by stage.
struct RankMemory {
  std::vector<std::int64_t> resident;  // what it holds anyway
  std::vector<std::int64_t> budget;
  std::int64_t largest = 0;  // the most that a rank takes under 1F1B if everything is kept and nothing overlaps

  // kept: without overlap. Without a budget, and for a comparison by overlap.memory_factor, a rank may take that times
  // what the largest one takes.
  RankMemory(const OfStages& kept, const PlanRequest& request) {
    for (const auto& of : kept) {
      const auto costs = request.costs ? request.costs->of_stage(int(resident.size())) : nullptr;
      PlanRequest of_stage = request;
      of_stage.costs = costs.get();
      budget.push_back(of_stage.budget());
      resident.push_back(schedule::resident_bytes(of->all.candidate.program));
      largest = std::max(largest, resident.back() + of->arena);
    }
    const double factor = request.overlap.memory_factor;
    for (std::int64_t& most : budget)
      if (most == 0 || factor > 0) {
        const auto compared = std::int64_t(std::max(1.0, factor) * double(largest));
        most = most == 0 ? compared : std::min(most, compared);
      }
  }

  // What the arenas may take: of a share of the largest rank's memory, and of the budgets.
  std::vector<std::int64_t> arenas(double share) const {
    std::vector<std::int64_t> most;
    for (const std::int64_t bytes : resident) most.push_back(std::int64_t(share * double(largest)) - bytes);
    return most;
  }
  std::vector<std::int64_t> arenas() const {
    std::vector<std::int64_t> most;
    for (std::size_t stage = 0; stage < resident.size(); ++stage) most.push_back(budget[stage] - resident[stage]);
    return most;
  }
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

// What the stages recompute so that 1F1B fits a memory.
class Recomputing {
 public:
  // steps: of one micro batch, which outlive this.
  Recomputing(std::span<const Made> steps, const PlanRequest& request) : steps_(steps), request_(request) {
    const int stages = int(steps.size());
    for (int stage = 0; stage < stages; ++stage) {
      const auto costs = request.costs ? request.costs->of_stage(stage) : nullptr;
      const auto arena = [stage, stages, &request](const ir::Program& step) {
        const Candidate all = schedule::in_micro_batches(unpredicted(step), request.micro_batches);
        return arena_bytes(one_forward_one_backward(all, stage, stages));
      };
      const ir::Program& step = steps[std::size_t(stage)].candidate.program;
      choices_.emplace_back(step, times_of(step, costs.get()),
                            StepOrder{arena, std::min(stages - stage, request.micro_batches)});
    }
  }

  // Where no arena is small enough, that which needs least. Stages that recompute what they did in the last call are
  // the same object.
  OfStages within(std::span<const std::int64_t> most) {
    last_.resize(most.size());
    chosen_.resize(most.size());
    for (std::size_t stage = 0; stage < most.size(); ++stage) {
      const RecomputeChoice choice = choices_[stage].within(most[stage]);
      if (last_[stage] && choice.chosen == chosen_[stage]) continue;
      Made made = steps_[stage];
      if (choice.any())
        made.candidate = unpredicted(made.pipeline.run(
            "recompute", made.candidate.program, [&](const ir::Program&) { return choices_[stage].program(choice); }));
      chosen_[stage] = choice.chosen;
      last_[stage] = std::make_shared<const MicroBatches>(std::move(made), int(stage), request_);
    }
    return last_;
  }

 private:
  const std::span<const Made> steps_;
  const PlanRequest& request_;
  std::deque<RecomputeChoices> choices_;   // by stage
  OfStages last_;                          // likewise
  std::vector<std::vector<bool>> chosen_;  // likewise: by instruction
};

std::vector<std::int64_t> arenas_of(const OfStages& stages) {
  std::vector<std::int64_t> arenas;
  for (const auto& of : stages) arenas.push_back(of->arena);
  return arenas;
}

// Shares of the memory that the largest rank takes if everything is kept, within which orders are searched.
constexpr double memory_shares[] = {0.25, 0.5, 0.75, 1, 1.15, 1.35, 16};
// Values are recomputed for this many shares, evenly spaced below 1.
constexpr int kept_steps = 25;

// What no order of these instructions goes below.
double least_of(const std::vector<const ir::Program*>& programs, const PlanRequest& request) {
  const Work all(programs, request);
  return schedule::least_makespan(schedule::stage_graph(all.work, request.mesh), all.work);
}

// Schedules all stages by the policy of the request, in the order of its pipeline schedule.
//
// With all costs known, orders are searched within fixed shares of memory, whatever the budget is, and the shortest
// that fits it is taken: more memory adds candidates. They are tried without overlap, by the policy of the
// request, and by those that it contains: the shortest schedule of a micro batch alone need not be the best of those in
// flight. Where the shortest order does not fit, orders that recompute values are candidates, for ever smaller shares
// of the memory, until no order of what is then computed can be shorter than the best.
class StagePlanner {
 public:
  // steps: of one micro batch.
  StagePlanner(std::span<const Made> steps, const PlanRequest& request)
      : steps_(steps),
        request_(request),
        kept_(of_stages(steps, request)),
        memory_(kept_, request),
        most_(memory_.arenas()) {}

  // made: the micro batches of all stages. Errors: an op that the costs lack, a limit that is too small.
  Result<StageOrders> run(std::vector<Made>& made, PlanReport& report) {
    report.requested = request_.overlap.policy;
    report.chosen = sequential;
    const std::string_view policy = find_policy(request_.overlap.policy)->name;
    LANCET_ASSIGN(const std::optional<OpCosts> op_costs, op_costs_of(programs_of(kept_), request_));
    if (!op_costs && policy != sequential)
      return config_error(
          fmt::format("overlap.policy: expected a profile for {}, found none", request_.overlap.policy));
    if (!op_costs) {
      Stages stages(sequential, are_within(arenas_of(kept_), most_) ? kept_ : recomputing().within(most_), request_);
      LANCET_TRY(check_limit(stages.made));
      for (const auto& of : stages.made) made.push_back(of->all);
      return stages.untimed(most_);
    }
    LANCET_TRY(try_orders(kept_, limits_from(1)));
    // Where memory binds, what is recomputed may make room for a shorter order.
    for (int step = kept_steps - 1; step >= 0 && !is_as_good(best_, unlimited_); --step) {
      const double share = double(step) / kept_steps;
      const std::vector<std::int64_t> own = memory_.arenas(share);
      if (!are_within(own, most_)) continue;
      const OfStages stages = recomputing().within(own);
      const std::vector<std::int64_t> arenas = arenas_of(stages);
      const bool is_least = !are_within(arenas, own);
      if (is_least && !are_within(arenas, most_)) break;
      if (best_.orders && least_of(programs_of(stages), request_) >= best_.orders->ms) break;
      LANCET_TRY(try_orders(stages, is_least ? std::vector<std::vector<std::int64_t>>{arenas} : limits_from(share)));
      if (is_least) break;
    }
    if (!best_.orders) {
      const OfStages least = recomputing().within(std::vector<std::int64_t>(steps_.size()));
      LANCET_TRY(check_limit(least));
      most_ = arenas_of(least);
      unlimited_ = {};
      LANCET_TRY(try_orders(least, {most_}));
    }
    const bool is_shorter = !plain_.orders || best_.orders->ms < plain_.orders->ms * (1 - request_.least_gain);
    Best& best = is_shorter || best_.stages->forced() > 0 ? best_ : plain_;
    if (best.stages->policy != sequential) report.chosen = policy;
    if (report.chosen == sequential && policy != sequential)
      report.why = fmt::format("{} runs sequential: nothing is predicted to be shorter", request_.overlap.policy);
    if (best.stages->policy != report.chosen)
      best.orders->how += fmt::format(", each micro batch as by {}", best.stages->policy);
    for (const auto& of : best.stages->made) made.push_back(of->all);
    return *std::move(best.orders);
  }

 private:
  struct Best {
    std::shared_ptr<Stages> stages;
    std::optional<StageOrders> orders;
    void replace_if_shorter(const std::shared_ptr<Stages>& by, const StageOrders& other) {
      const auto forced = by->forced(), was_forced = stages ? stages->forced() : 0;
      if (orders && (forced != was_forced ? forced < was_forced : other.ms >= orders->ms)) return;
      stages = by;
      orders = other;
    }
  };

  Recomputing& recomputing() {
    if (!recomputing_) recomputing_.emplace(steps_, request_);
    return *recomputing_;
  }

  Status check_limit(const OfStages& stages) const {
    std::int64_t most = 0;
    for (std::size_t stage = 0; stage < stages.size(); ++stage)
      most = std::max(most, memory_.resident[stage] + stages[stage]->arena);
    return request_.memory_limit == 0 || most <= request_.memory_limit ? Status()
                                                                       : memory_limit_too_small(most, request_);
  }

  // Arenas within which orders are searched. Those of what is recomputed end with the first that exceeds the budget.
  std::vector<std::vector<std::int64_t>> limits_from(double kept) const {
    std::vector<std::vector<std::int64_t>> limits{memory_.arenas(kept)};
    for (const double share : memory_shares)
      if (share > kept && (kept == 1 || are_within(limits.back(), most_))) limits.push_back(memory_.arenas(share));
    return limits;
  }

  static bool is_as_good(const Best& one, const Best& other) {
    return one.orders && one.stages->forced() >= other.stages->forced() && one.orders->ms <= other.orders->ms;
  }

  // By chance, an order that recomputes may be shorter than all that keep everything in any memory. It is left out,
  // since more memory would then lengthen the plan.
  void consider(const std::shared_ptr<Stages>& by, const StageOrders& orders, bool keeps_all) {
    if (keeps_all) unlimited_.replace_if_shorter(by, orders);
    if (!are_within(orders.arenas, most_)) return;
    if (!keeps_all && unlimited_.orders && orders.ms < unlimited_.orders->ms) return;
    best_.replace_if_shorter(by, orders);
    if (by->policy == sequential) plain_.replace_if_shorter(by, orders);
  }

  // stages: without overlap. limits: of the arenas, ascending.
  Status try_orders(const OfStages& stages, const std::vector<std::vector<std::int64_t>>& limits) {
    const bool keeps_all = stages == kept_;
    LANCET_ASSIGN(const auto by_limit, by_policies(stages, limits));
    for (std::size_t i = 0; i < limits.size(); ++i) {
      const auto& tried = by_limit[i];
      for (const auto& by : tried)
        for (const StageOrders& orders : by->passes_in_order(limits[i])) consider(by, orders, keeps_all);
      const auto known = std::ranges::min_element(
          tried, {}, [&](const auto& by) { return std::pair(-by->forced(), by->shortest_ms(limits[i])); });
      consider_listed(tried[0], limits[i], keeps_all);
      if (known != tried.begin()) consider_listed(*known, limits[i], keeps_all);
    }
    return {};
  }

  // The settings of orders are searched where everything is kept, and then used for what is recomputed, too.
  void consider_listed(const std::shared_ptr<Stages>& by, std::span<const std::int64_t> most, bool keeps_all) {
    const auto orders = keeps_all ? by->listed(most) : by->listed(most, settings_);
    if (!orders) return;
    consider(by, *orders, keeps_all);
    if (keeps_all && std::ranges::count(settings_, by->settings()) == 0) settings_.push_back(by->settings());
  }

  // By limit: without overlap, and by each policy. A stage in which a policy's 1F1B needs too much runs without
  // overlap. Error: an op that the costs lack.
  Result<std::vector<std::vector<std::shared_ptr<Stages>>>> by_policies(
      const OfStages& stages, const std::vector<std::vector<std::int64_t>>& limits) {
    std::vector<std::string_view> names{find_policy(request_.overlap.policy)->name};
    for (const std::string_view from : find_policy(names[0])->from)
      if (!find_policy(from)->is.of_micro_batches) names.push_back(from);
    std::erase(names, sequential);
    std::vector<std::vector<OfStages>> made(limits.size(), std::vector<OfStages>(names.size()));
    for (std::size_t stage = 0; stage < stages.size() && !names.empty(); ++stage) {
      const auto costs = request_.costs->of_stage(int(stage));
      const Made& one = stages[stage]->one;
      LANCET_ASSIGN(const schedule::Step step,
                    schedule::Step::make(one.candidate.program, *costs, schedule::part_counts(request_.overlap)));
      // Each micro batch in flight may take as much more than without overlap as all of them may.
      std::vector<double> factors;
      for (const auto& most : limits)
        factors.push_back(std::max(1.0, double(most[stage]) / double(stages[stage]->arena)));
      const auto found = schedule_micro_batch(step, names, factors, request_, one.pipeline);
      OfStages known;
      for (std::size_t by = 0; by < names.size(); ++by)
        for (std::size_t i = 0; i < limits.size(); ++i) {
          const Candidate& of = found[i][by].candidate;
          auto same = std::ranges::find_if(known, [&](const auto& batches) {
            return batches->one.candidate.how == of.how && batches->one.candidate.timeline.when == of.timeline.when;
          });
          if (same == known.end())
            same = known.insert(same, std::make_shared<const MicroBatches>(found[i][by], int(stage), request_));
          made[i][by].push_back((*same)->arena <= limits[i][stage] ? *same : stages[stage]);
        }
    }
    std::vector<std::vector<std::shared_ptr<Stages>>> tried;
    const auto stages_by = [&](std::string_view name, const OfStages& of) {
      for (const auto& row : tried)
        for (const auto& known : row)
          if (known->made == of) return known;
      return std::make_shared<Stages>(name, of, request_);
    };
    for (std::size_t i = 0; i < limits.size(); ++i) {
      auto& now = tried.emplace_back();
      now.push_back(stages_by(sequential, stages));
      for (std::size_t by = 0; by < names.size(); ++by) now.push_back(stages_by(names[by], made[i][by]));
    }
    return tried;
  }

  const std::span<const Made> steps_;
  const PlanRequest& request_;
  const OfStages kept_;
  const RankMemory memory_;
  std::vector<std::int64_t> most_;  // of the arenas, within the budget
  std::optional<Recomputing> recomputing_;
  Best best_, plain_;                                           // within the budget: of all, and without overlap
  Best unlimited_;                                              // of those that keep everything, in any memory
  std::vector<std::vector<schedule::StageSettings>> settings_;  // of list schedules that keep everything
};

// Sets the timelines. False if the costs lack an op, which they may.
Result<bool> predict(std::vector<Made>& made, const PlanRequest& request, StageReport& report) {
  std::vector<const ir::Program*> programs;
  for (const Made& one : made) programs.push_back(&one.candidate.program);
  LANCET_ASSIGN(std::optional<OpCosts> op_costs, op_costs_of(programs, request));
  if (!op_costs) return false;
  std::vector<schedule::RankClass> work;
  for (Made& one : made) {
    Candidate& all = one.candidate;
    all.op_costs = std::move((*op_costs)[work.size()]);
    work.push_back(class_of(int(work.size()), all.program, all.needed, all.op_costs, request));
  }
  schedule::StagesTimeline times = schedule::simulate(work, request.mesh);
  report.makespan = times.makespan;
  report.least = least_of(programs, request);
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
  LANCET_ASSIGN(const std::vector<Made> steps, steps_of(logical, request));
  std::vector<Made> made;
  PlanReport of_order;
  LANCET_ASSIGN(StageOrders orders, StagePlanner(steps, request).run(made, of_order));
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
