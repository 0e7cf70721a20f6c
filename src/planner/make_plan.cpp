// A plan is made in four steps, several times where a memory limit is given (within_memory.h). The step passes turn the
// logical Program into a rank's training step of one micro batch. The passes of the requested policy schedule it, as do
// those of the policies that it starts from or is compared with. The pass micro_batches repeats the schedule for all
// micro batches of the plan, so that the time of a search does not depend on their number; policies are compared by the
// time of all of them. The last pass, plan_memory, gives every value its offset in memory. All passes run in one
// Pipeline.
#include "lancet/planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"
#include "lancet/schedule/step.h"
#include "policies.h"
#include "steps.h"
#include "within_memory.h"

namespace lancet::planner {
namespace {

using schedule::Candidate;
using schedule::Step;

// Policies that were not asked for are planned up to this number of instructions, which takes some seconds.
constexpr std::size_t compared_step = 2000;
// A sequential plan of this many instructions takes some ten seconds.
constexpr std::size_t slow_sequential_step = 40'000;

// instructions: of one micro batch, which is what a policy searches.
void tell_if_slow(const PlanRequest& request, std::size_t instructions) {
  const std::string& policy = request.overlap.policy;
  const bool searches = policy != sequential;
  if (!searches) instructions *= std::size_t(request.micro_batches);
  if (instructions > (searches ? compared_step : slow_sequential_step))
    log::info("plan: {} of {} instructions; this may take minutes", policy, instructions);
}

Result<ir::Program> step_of(const ir::Program& logical, const PlanRequest& request, Pipeline& pipeline) {
  LANCET_ASSIGN(ir::Program program, with_gradients(logical, request, pipeline));
  return with_updates(std::move(program), request, pipeline);
}

// The passes that a plan cannot do without.
constexpr std::string_view required[] = {"autodiff",    "shard",        "partition_spmd", "sync",
                                         "optimize",    "fold_repeats", "recompute",      "micro_batches",
                                         "plan_memory", "stages",       "pipeline_order"};

std::vector<std::string_view> skippable() {
  std::vector<std::string_view> names{"fuse"};
  for (const Policy& policy : policy_table())
    for (const auto* passes : {&policy.passes, &policy.across, &policy.border})
      for (const SchedulePass& pass : *passes)
        if (std::find(names.begin(), names.end(), pass.name) == names.end()) names.push_back(pass.name);
  return names;
}

// Without a second micro batch, a policy of several is another one.
bool is_compared(const Policy& policy, int micro_batches) { return !policy.is.of_micro_batches || micro_batches > 1; }

// A policy's schedule of one micro batch, and the passes that made it.
struct OneMicroBatch : Made {
  std::int64_t arena_bytes = 0;
};

// A policy's schedule.
struct Scheduled {
  std::size_t policy = 0;  // index in the table
  std::shared_ptr<const OneMicroBatch> one;
  // What the plan runs, if it is more than that: all its micro batches, with the end of the step before.
  std::optional<Made> run = {};
  std::int64_t arena_bytes = 0, resident_bytes = 0;  // of the whole
  const Made& made() const { return run ? *run : *one; }
  const Candidate& whole() const { return made().candidate; }
};

// Limits of the arena under which policies search, relative to that of the sequential step; 0: none.
constexpr double memory_rungs[] = {0, 2, 1.5, 1.25, 1.1, 1.05, 1.01};

// The schedules of the step by policy. Each policy searches under fixed limits of parts and of memory, the rungs, each
// search alone, whatever a request asks for; what a search finds within a lower limit of memory is also found there. A
// request takes the shortest schedule of all rungs that fits it. So more memory, or more parts, never makes a plan
// longer, and no policy's plan is longer than that of one which it contains.
class Schedules {
 public:
  Schedules(const Step& step, const PlanRequest& request, const Pipeline& pipeline)
      : request_(request),
        crosses_steps_(request.overlap.across_steps),
        pipeline_(pipeline),
        arena_bytes_(std::numeric_limits<std::int64_t>::max()),
        sequential_bytes_(step.arena_bytes()) {
    if (!forces_parts() || step.wanted_counts().empty()) steps_.push_back({step.in_parts(1, 1), step.in_parts(1, 1)});
    int before = 1;
    for (const int parts : step.wanted_counts()) {
      steps_.push_back({step.in_parts(before + 1, parts), step.in_parts(1, parts)});
      before = parts;
    }
    if (request.budget() > 0) arena_bytes_ = request.budget() - schedule::resident_bytes(step.program());
    arena_bytes_ = std::min(arena_bytes_, bytes_of(request.overlap.memory_factor));
    made_.assign(policy_table().size(), std::vector<OfPolicy>(steps_.size()));
  }

  // The shortest schedule of the policy, or of those that it contains, that fits overlap.memory_factor and the budget;
  // null if none does. Ties, up to the rounding of sums, go to the policy itself.
  const Scheduled* best(std::size_t policy, bool within_budget = true) {
    const Scheduled* best = nullptr;
    const auto lacks_parts = [&](const Scheduled& one) {
      return forces_parts() && schedule::most_parts(one.whole().program) == 1;
    };
    const auto consider = [&](const Scheduled* one) {
      if (!one || !fits(*one, within_budget)) return;
      if (!best || lacks_parts(*best) > lacks_parts(*one) ||
          (lacks_parts(*best) == lacks_parts(*one) && schedule::is_shorter(one->whole(), best->whole())))
        best = one;
    };
    for (std::size_t step = 0; step < steps_of(policy); ++step)
      for (const std::shared_ptr<const Scheduled>& one : of(policy, step)) consider(one.get());
    for (const std::size_t from : starts(policy)) consider(this->best(from, within_budget));
    return best;
  }
  // Under the lowest limit of memory; for a policy of which no schedule fits.
  const Scheduled& least_memory(const Policy& policy) { return *of(index_of(policy.name), 0).back(); }
  const Scheduled& without_overlap() { return *of(index_of(sequential), 0).front(); }
  // Of what best() returns from now on.
  void limit_memory(double factor) { arena_bytes_ = bytes_of(factor); }

  static std::size_t index_of(std::string_view name) {
    const Policy* policy = find_policy(name);
    LANCET_CHECK(policy, "no policy is named {}", name);
    return static_cast<std::size_t>(policy - policy_table().data());
  }

 private:
  template <class T>
  using Rungs = std::vector<std::shared_ptr<const T>>;  // by limit of memory
  struct OfPolicy {
    Rungs<OneMicroBatch> ones;
    Rungs<Scheduled> wholes;
  };

  struct InParts {
    Step alone;  // in more parts than the one before
    Step up_to;  // or in fewer
  };

  // Of the arena, from overlap.memory_factor.
  std::int64_t bytes_of(double factor) const {
    return factor == 0 ? std::numeric_limits<std::int64_t>::max() : std::int64_t(factor * double(sequential_bytes_));
  }
  bool forces_parts() const { return request_.overlap.parts > 1; }
  bool fits(const Scheduled& one, bool within_budget) const {
    if (!within_budget) return one.arena_bytes <= bytes_of(request_.overlap.memory_factor);
    return one.arena_bytes <= arena_bytes_ &&
           (request_.budget() == 0 || one.resident_bytes + one.arena_bytes <= request_.budget());
  }

  std::vector<std::size_t> starts(std::size_t policy) const {
    std::vector<std::size_t> starts;
    for (const std::string_view from : policy_table()[policy].from)
      if (is_compared(policy_table()[index_of(from)], request_.micro_batches)) starts.push_back(index_of(from));
    return starts;
  }

  // How many limits of parts the policy searches. What is split by no cut has no parts.
  std::size_t steps_of(std::size_t policy) const {
    const auto cuts = schedule::all_cuts();
    const auto is_cut = [&](std::string_view name) {
      return std::ranges::any_of(cuts, [&](const schedule::Cut* cut) { return cut->name == name; });
    };
    return std::ranges::any_of(policy_table()[policy].cuts, is_cut) ? steps_.size() : 1;
  }

  const Step& step_of(const Policy& policy, std::size_t step) const {
    return policy.is.mixes_parts ? steps_[step].up_to : steps_[step].alone;
  }

  // What is within a limit, or was not within the last one, is found again.
  template <class T, class Make>
  const Rungs<T>& filled(Rungs<T>& rungs, const Make& make) const {
    std::int64_t last = std::numeric_limits<std::int64_t>::max();
    while (rungs.size() < std::size(memory_rungs)) {
      const std::int64_t bytes = bytes_of(memory_rungs[rungs.size()]);
      const bool again = !rungs.empty() && (rungs.back()->arena_bytes <= bytes || rungs.back()->arena_bytes > last);
      if (!again) last = bytes;
      rungs.push_back(again ? rungs.back() : make(rungs.size()));
    }
    return rungs;
  }

  const Rungs<Scheduled>& of(std::size_t policy, std::size_t step) {
    const std::size_t at = std::min(step, steps_of(policy) - 1);
    return filled(made_[policy][at].wholes, [&](std::size_t rung) { return whole(policy, at, rung); });
  }
  const Rungs<OneMicroBatch>& ones(std::size_t policy, std::size_t step) {
    const std::size_t at = std::min(step, steps_of(policy) - 1);
    return filled(made_[policy][at].ones, [&](std::size_t rung) { return one(policy, at, rung); });
  }

  config::Overlap on(std::size_t rung) const {
    config::Overlap overlap = request_.overlap;
    overlap.memory_factor = memory_rungs[rung];
    return overlap;
  }

  std::shared_ptr<const OneMicroBatch> one(std::size_t index, std::size_t at, std::size_t rung) {
    const Policy& policy = policy_table()[index];
    OneMicroBatch one = start_of(index, at, rung);
    run(policy.passes, step_of(policy, at), on(rung), one);
    for (std::size_t before = 0; before < at; ++before)  // in fewer parts
      if (const auto& same = ones(index, before)[rung];
          same->candidate.how == one.candidate.how && same->candidate.timeline.when == one.candidate.timeline.when)
        return same;
    one.arena_bytes = schedule::arena_bytes(one.candidate.program, one.candidate.needed);
    return std::make_shared<const OneMicroBatch>(std::move(one));
  }

  std::shared_ptr<const Scheduled> whole(std::size_t index, std::size_t at, std::size_t rung) {
    const Policy& policy = policy_table()[index];
    const Step& step = step_of(policy, at);
    Scheduled scheduled{index, ones(index, at)[rung]};
    for (std::size_t before = 0; before < at; ++before)
      if (const auto& same = of(index, before)[rung]; same->one == scheduled.one) return same;
    if (request_.micro_batches > 1) {
      scheduled.run = repeated(*scheduled.one, step);
      run(policy.across, step, on(rung), *scheduled.run);
    }
    if (crosses_steps_ && !policy.border.empty()) {
      if (!scheduled.run) scheduled.run = *scheduled.one;
      run(policy.border, step, on(rung), *scheduled.run);
    }
    const Candidate& all = scheduled.whole();
    scheduled.arena_bytes = scheduled.run ? schedule::arena_bytes(all.program, all.needed) : scheduled.one->arena_bytes;
    scheduled.resident_bytes = schedule::resident_bytes(all.program);
    return std::make_shared<const Scheduled>(std::move(scheduled));
  }

  // What the passes of a policy start from, of one micro batch.
  OneMicroBatch start_of(std::size_t index, std::size_t at, std::size_t rung) {
    const OneMicroBatch* start = nullptr;
    std::string_view name;
    for (const std::size_t from : starts(index)) {
      const OneMicroBatch* one = ones(from, at)[rung].get();
      if (start &&
          !(schedule::is_shorter(one->candidate, start->candidate) && one->arena_bytes <= bytes_of(memory_rungs[rung])))
        continue;
      start = one;
      name = policy_table()[from].name;
    }
    if (!start) return {{schedule::program_order(step_of(policy_table()[index], at)), pipeline_}};
    OneMicroBatch started = *start;
    if (name != sequential) started.candidate.how = fmt::format("{}: {}", name, started.candidate.how);
    return started;
  }

  void run(const std::vector<SchedulePass>& passes, const Step& step, const config::Overlap& overlap,
           Made& state) const {
    for (const SchedulePass& pass : passes)
      state.candidate = state.pipeline.run(pass.name, std::move(state.candidate), [&](Candidate candidate) {
        return pass.run(step, overlap, std::move(candidate));
      });
  }

  Made repeated(const OneMicroBatch& one, const Step& step) const {
    Made repeated = one;
    planner::repeat(repeated, request_.micro_batches);
    Candidate& all = repeated.candidate;
    all = schedule::as_it_is(step, std::move(all.how), std::move(all.program), std::move(all.op_costs),
                             std::move(all.needed));
    all.one = std::make_shared<const Candidate>(one.candidate);
    return repeated;
  }

  const PlanRequest& request_;
  const bool crosses_steps_;  // the end of a step may run in the next one
  const Pipeline& pipeline_;  // after the step passes
  std::int64_t arena_bytes_, sequential_bytes_;
  std::vector<InParts> steps_;               // by limit of parts
  std::vector<std::vector<OfPolicy>> made_;  // by policy and limit of parts
};

// Where updates wait for the norm of the gradients, three things follow one another: the forward pass, without which no
// gradient is complete; the sums that the norm is made of; and the updates, which some forward pass reads. 0 where they
// do not.
double in_turn_ms(const Candidate& unsplit) {
  const std::vector<bool> may_cross = schedule::may_cross_steps(unsplit.program);
  double sums = 0, computed = 0;
  for (std::size_t i = 0; i < may_cross.size(); ++i) {
    const ir::Instruction& at = unsplit.program.instructions[i];
    if (at.stream == ir::Stream::reduce && at.role == ir::Role::sync && !may_cross[i]) sums += unsplit.op_costs[i].ms;
    if (at.stream == ir::Stream::compute && (at.role == ir::Role::forward || may_cross[i]))
      computed += unsplit.op_costs[i].ms;
  }
  return sums > 0 ? computed + sums : 0;
}

// Hidden communication adds its core time to the compute stream, exposed communication its own time to the step, so it
// adds at least the smaller of the two. Where messages would take more than most_of_cores together, as further rounds
// of a layer do beside all-reduces, the rest is not added. Two streams that share the network have a common speed of at
// least one.
LowerBound lower_bound_of(const Candidate& unsplit, const cost::Interference& interference) {
  double compute = 0, core = 0, all_to_all = 0, all_reduce = 0, most_share = 0;  // of an all-reduce: of the cores
  for (std::size_t i = 0; i < unsplit.op_costs.size(); ++i)
    if (const cost::OpCost& cost = unsplit.op_costs[i];
        unsplit.program.instructions[i].stream == ir::Stream::reduce && cost.ms > 0)
      most_share = std::max(most_share, cost.core_ms / cost.ms);
  for (std::size_t i = 0; i < unsplit.op_costs.size(); ++i) {
    const cost::OpCost& cost = unsplit.op_costs[i];
    const ir::Stream stream = unsplit.program.instructions[i].stream;
    double& sum = stream == ir::Stream::compute ? compute : stream == ir::Stream::expert ? all_to_all : all_reduce;
    sum += cost.ms;
    const double others = stream == ir::Stream::expert ? most_share : 0;
    core += std::min(cost.core_ms, cost.ms * std::max(0.0, schedule::most_of_cores - others));
  }
  const double speed = interference.queue_ms ? 0.5 : std::max(interference.network_beside_network, 0.5);
  const double both = std::min(all_to_all, all_reduce);
  const double network = std::max(all_to_all, all_reduce) - both + both / speed;
  return {compute + std::min(core, network), network, in_turn_ms(unsplit)};
}

const Scheduled& choose(Schedules& schedules, const PlanRequest& request, PlanReport& report) {
  const config::Overlap& overlap = request.overlap;
  const Scheduled& first = schedules.without_overlap();
  const std::size_t policy = Schedules::index_of(overlap.policy);
  const Scheduled* wanted = schedules.best(policy);
  if (!wanted) {
    report.why = fmt::format("{} runs sequential: no schedule of it fits the budget", overlap.policy);
    return first;
  }
  const double sequential_ms = first.whole().timeline.makespan, ms = wanted->whole().timeline.makespan;
  const bool forced = overlap.parts > 1 && schedule::most_parts(wanted->whole().program) > 1;
  if (policy == first.policy || ms < sequential_ms * (1 - request.least_gain) || forced) return *wanted;
  if (overlap.parts > 1 && !policy_table()[policy].cuts.empty()) {
    report.why = fmt::format("{} runs sequential: nothing can be in {} parts here", overlap.policy, overlap.parts);
    return first;
  }
  report.why =
      fmt::format("{} runs sequential: predicted {:.3f} ms against {:.3f} ms", overlap.policy, ms, sequential_ms);
  if (request.least_gain > 0)
    report.why += fmt::format(", a gain below the {:.0f}% by which predictions err", 100 * request.least_gain);
  return first;
}

Result<ir::Plan> make_unpredicted_plan(const ir::Program& logical, ir::Program step, const PlanRequest& request,
                                       Pipeline pipeline, PlanReport* report) {
  if (request.overlap.policy != sequential)
    return config_error(fmt::format("overlap.policy: expected a profile for {}, found none", request.overlap.policy));
  Candidate candidate = pipeline.run("take_turns", std::move(step), unpredicted);
  Made made{std::move(candidate), std::move(pipeline)};
  repeat(made, request.micro_batches);
  ir::Plan plan = plan_of(std::move(made.candidate), made.pipeline);
  set_step_header(plan, logical, sequential, request);
  if (report) report->passes = made.pipeline.runs();
  return plan;
}

ir::Plan make_predicted_plan(const ir::Program& logical, const Step& step, const PlanRequest& request,
                             const Pipeline& pipeline, PlanReport* report) {
  Schedules schedules(step, request, pipeline);
  PlanReport made;
  const Scheduled& chosen = choose(schedules, request, made);
  const std::size_t requested = Schedules::index_of(request.overlap.policy);
  made.chosen = chosen.policy == Schedules::index_of(sequential) ? sequential : policy_table()[requested].name;
  made.memory_binds = schedules.best(requested) != schedules.best(requested, false);
  const Scheduled* wanted = schedules.best(requested);
  made.why_not_across_steps = (wanted ? *wanted : chosen).whole().why_not_across_steps;
  const schedule::Timeline& timeline = chosen.whole().timeline;
  Pipeline passes = chosen.made().pipeline;
  ir::Plan plan = plan_of(chosen.whole(), passes);
  set_step_header(plan, logical, made.chosen, request);
  if (const std::string profile = request.costs->identity(); !profile.empty()) plan.header.set("profile", profile);
  plan.header.set("predicted_ms", timeline.makespan);
  plan.header.set("exposed_ms", timeline.exposed);
  if (!report) return plan;
  const auto table = policy_table();
  const bool all = request.compare && step.program().instructions.size() <= compared_step;
  for (const Policy& policy : table) {
    const bool asked = policy.name == sequential || policy.name == request.overlap.policy;
    if (!(asked || (all && is_compared(policy, request.micro_batches)))) continue;
    const Scheduled* tried =
        policy.name == sequential ? &schedules.without_overlap() : schedules.best(Schedules::index_of(policy.name));
    const Scheduled& shown = tried ? *tried : schedules.least_memory(policy);
    const Candidate& whole = shown.whole();
    made.policies.push_back({std::string(policy.name), whole.how, whole.timeline, schedule::most_parts(whole.program),
                             shown.arena_bytes, tried != nullptr});
  }
  made.passes = passes.runs();
  made.requested = request.overlap.policy;
  made.lower_bound = lower_bound_of(schedules.without_overlap().whole(), step.costs().interference());
  *report = std::move(made);
  return plan;
}

// A rank's step by the policy of the request.
Result<ir::Plan> schedule_step(const ir::Program& logical, ir::Program program, const PlanRequest& request,
                               Pipeline pipeline, PlanReport* report) {
  if (!request.costs) return make_unpredicted_plan(logical, std::move(program), request, std::move(pipeline), report);
  auto step = Step::make(program, *request.costs, schedule::part_counts(request.overlap));
  if (step.ok()) return make_predicted_plan(logical, *step, request, pipeline, report);
  if (!request.costs_may_lack_ops) return step.error();
  return make_unpredicted_plan(logical, std::move(program), request, std::move(pipeline), report);
}

}  // namespace

std::int64_t PlanRequest::budget() const {
  const std::int64_t device = device_bytes > 0 || !costs ? device_bytes : costs->free_bytes().value_or(0);
  return memory_limit > 0 && device > 0 ? std::min(memory_limit, device) : std::max(memory_limit, device);
}

std::vector<PolicyInfo> policies() {
  std::vector<PolicyInfo> result;
  for (const Policy& policy : policy_table()) result.push_back({policy.name, policy.what, policy.cuts});
  return result;
}

std::vector<std::string_view> compared_policies(std::int64_t micro_batches) {
  std::vector<std::string_view> names;
  for (const Policy& policy : policy_table())
    if (is_compared(policy, micro_batches)) names.push_back(policy.name);
  return names;
}

Status check_skip(const std::vector<std::string>& skip) {
  const auto names = skippable();
  for (const std::string& name : skip) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (std::find(std::begin(required), std::end(required), name) != std::end(required))
      return config_error(fmt::format("--skip: no plan can do without pass {}", name));
    return config_error(fmt::format("--skip: expected one of {}, found '{}'", fmt::join(names, ", "), name));
  }
  return {};
}

Status check_policy(std::string_view name) {
  if (find_policy(name)) return {};
  std::vector<std::string_view> names;
  for (const Policy& policy : policy_table()) names.push_back(policy.name);
  return config_error(fmt::format("overlap.policy: expected one of {}, found '{}'", fmt::join(names, ", "), name));
}

std::vector<std::vector<Made>> schedule_micro_batch(const Step& step, std::span<const std::string_view> policies,
                                                    std::span<const double> memory_factors, PlanRequest request,
                                                    const Pipeline& pipeline) {
  request.micro_batches = 1;
  request.overlap.across_steps = false;
  request.memory_limit = 0;
  request.device_bytes = std::numeric_limits<std::int64_t>::max();
  Schedules schedules(step, request, pipeline);
  std::vector<std::vector<Made>> made;
  for (const double factor : memory_factors) {
    schedules.limit_memory(factor);
    made.emplace_back();
    for (const std::string_view policy : policies) {
      const Scheduled* best = schedules.best(Schedules::index_of(policy));
      made.back().push_back(*(best ? *best : schedules.without_overlap()).one);
    }
  }
  return made;
}

Result<ir::Program> step_program(const ir::Program& logical, const PlanRequest& request) {
  Pipeline pipeline;
  return step_of(logical, request, pipeline);
}

Result<std::vector<ir::Program>> programs_to_profile(const ir::Program& logical, const PlanRequest& request,
                                                     int hosts) {
  LANCET_ASSIGN(const ir::Program step, step_program(logical, request));
  const cost::Layout layout{request.mesh.ranks(), hosts, request.mesh};
  std::vector<ir::Program> programs = schedule::variants(step, request.overlap, layout);
  const passes::Recomputation values(step);
  for (ir::Program& variant : schedule::variants(values.run(values.candidates()), request.overlap, layout))
    programs.push_back(std::move(variant));
  return programs;
}

Result<ir::Plan> make_plan(const ir::Program& logical, const PlanRequest& request, PlanReport* report) {
  LANCET_CHECK(request.mesh[ir::Axis::stage] == 1, "a plan of one stage, of {}", ir::to_string(request.mesh));
  LANCET_TRY(check_policy(request.overlap.policy));
  if (const std::string_view name = find_policy(request.overlap.policy)->name; name != request.overlap.policy) {
    PlanRequest renamed = request;
    renamed.overlap.policy = name;
    return make_plan(logical, renamed, report);
  }
  LANCET_TRY(check_skip(request.skip));
  Pipeline pipeline(request.skip, request.keep_texts);
  LANCET_ASSIGN(ir::Program program, step_of(logical, request, pipeline));
  if (request.costs && !request.costs_may_lack_ops) LANCET_TRY(cost::op_costs(*request.costs, program));
  tell_if_slow(request, program.instructions.size());
  const PlanMaker make = [&](ir::Program whole, const PlanRequest& wanted, Pipeline passes, PlanReport* to) {
    return schedule_step(logical, std::move(whole), wanted, std::move(passes), to);
  };
  if (request.budget() > 0) return plan_within_memory(program, request, pipeline, make, report);
  return make(std::move(program), request, std::move(pipeline), report);
}

}  // namespace lancet::planner
