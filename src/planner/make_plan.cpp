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
#include <map>
#include <optional>

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
bool is_compared(const Policy& policy, int micro_batches) { return !policy.of_micro_batches || micro_batches > 1; }

// A policy's schedule, and the passes that made it.
struct Scheduled : Made {  // of one micro batch
  std::size_t policy = 0;  // index in the table; for a policy without passes, that of the policy whose schedule it uses
  // What the plan runs, if it is more than that: all its micro batches, with the end of the step before.
  std::optional<Made> run = {};
  const Candidate& whole() const { return run ? run->candidate : candidate; }
};

// The schedules of the step by policy, each made once.
class Schedules {
 public:
  Schedules(const Step& step, const PlanRequest& request, const Pipeline& pipeline)
      : step_(step),
        overlap_(request.overlap),
        micro_batches_(request.micro_batches),
        crosses_steps_(why_not_across_steps(request).empty()),
        pipeline_(pipeline) {}

  const Scheduled& of(std::size_t policy) {
    if (const auto it = made_.find(policy); it != made_.end()) return it->second;
    return made_.emplace(policy, make(policy)).first->second;
  }
  const Scheduled& of(std::string_view name) { return of(index_of(name)); }

  static std::size_t index_of(std::string_view name) {
    const Policy* policy = find_policy(name);
    LANCET_CHECK(policy, "no policy is named {}", name);
    return static_cast<std::size_t>(policy - policy_table().data());
  }

 private:
  Scheduled make(std::size_t index) {
    const Policy& policy = policy_table()[index];
    Scheduled scheduled =
        policy.from.empty() ? Scheduled{{schedule::program_order(step_), pipeline_}, index} : fastest(policy.from);
    run(policy.passes, scheduled);
    if (!policy.passes.empty()) scheduled.policy = index;
    if (micro_batches_ > 1) scheduled.run = repeat(policy, scheduled);
    if (crosses_steps_ && !policy.border.empty()) {
      if (!scheduled.run) scheduled.run = Made{scheduled.candidate, scheduled.pipeline};
      run(policy.border, *scheduled.run);
    }
    return scheduled;
  }

  void run(const std::vector<SchedulePass>& passes, Made& state) const {
    for (const SchedulePass& pass : passes)
      state.candidate = state.pipeline.run(pass.name, std::move(state.candidate), [&](Candidate candidate) {
        return pass.run(step_, overlap_, std::move(candidate));
      });
  }

  Made repeat(const Policy& policy, const Scheduled& one) const {
    Made repeated{one.candidate, one.pipeline};
    planner::repeat(repeated, micro_batches_);
    Candidate& all = repeated.candidate;
    all = schedule::as_it_is(step_, std::move(all.how), std::move(all.program), std::move(all.op_costs),
                             std::move(all.needed));
    run(policy.across, repeated);
    return repeated;
  }

  // The fastest of these policies' schedules that fit the memory; ties, up to the rounding of sums, go to the first in
  // the list, which fits it.
  Scheduled fastest(const std::vector<std::string_view>& names) {
    const Scheduled* best = &of(names.front());
    for (std::string_view name : names)
      if (const Scheduled* other = is_compared(policy_table()[index_of(name)], micro_batches_) ? &of(name) : best;
          schedule::is_better(step_, overlap_, other->whole(), best->whole()))
        best = other;
    return *best;
  }

  const Step& step_;
  const config::Overlap& overlap_;
  const int micro_batches_;
  const bool crosses_steps_;  // the end of a step may run in the next one
  const Pipeline& pipeline_;  // after the step passes
  std::map<std::size_t, Scheduled> made_;
};

// Hidden communication adds its core time to the compute stream, exposed communication its own time to the step, so it
// adds at least the smaller of the two. Two streams that share the network have a common speed of at least one.
LowerBound lower_bound_of(const Candidate& unsplit, const cost::Interference& interference) {
  double compute = 0, core = 0, all_to_all = 0, all_reduce = 0;
  for (std::size_t i = 0; i < unsplit.op_costs.size(); ++i) {
    const ir::Stream stream = unsplit.program.instructions[i].stream;
    double& sum = stream == ir::Stream::compute ? compute : stream == ir::Stream::expert ? all_to_all : all_reduce;
    sum += unsplit.op_costs[i].ms;
    core += unsplit.op_costs[i].core_ms;
  }
  const double speed = interference.queue_ms ? 0.5 : std::max(interference.network_beside_network, 0.5);
  const double both = std::min(all_to_all, all_reduce);
  const double network = std::max(all_to_all, all_reduce) - both + both / speed;
  return {compute + std::min(core, network), network};
}

PlanBounds bounds_of(const Step& step, const Candidate& chosen, double memory_factor) {
  const auto memory = std::int64_t(memory_factor * double(step.peak_bytes()));
  const std::vector<schedule::Chunked> plan{{chosen.program, chosen.op_costs}};
  return {memory_factor, schedule::find_bounds(schedule::chunked_variants(step), memory),
          schedule::find_bounds(plan, memory)};
}

const Scheduled& choose(Schedules& schedules, const PlanRequest& request, PlanReport& report) {
  const config::Overlap& overlap = request.overlap;
  const double least_gain = overlap.policy == "auto" ? request.least_gain : 0;
  const Scheduled &first = schedules.of(sequential), &wanted = schedules.of(overlap.policy);
  const double sequential_ms = first.whole().timeline.makespan, ms = wanted.whole().timeline.makespan;
  const bool forced = overlap.parts > 1 && schedule::most_parts(wanted.whole().program) > 1;
  if (wanted.policy == first.policy || ms < sequential_ms * (1 - least_gain) || forced) return wanted;
  if (overlap.parts > 1 && schedule::most_parts(wanted.whole().program) == 1 &&
      !policy_table()[wanted.policy].cuts.empty()) {
    report.why = fmt::format("{} runs sequential: nothing can be in {} parts here", overlap.policy, overlap.parts);
    return first;
  }
  report.why =
      fmt::format("{} runs sequential: predicted {:.3f} ms against {:.3f} ms", overlap.policy, ms, sequential_ms);
  if (least_gain > 0)
    report.why += fmt::format(", a gain below the {:.0f}% by which predictions err", 100 * least_gain);
  return first;
}

// Why a schedule leaves nothing to the next step; empty: it does, or its policy never would.
std::string why_ends_in_step(const Scheduled& scheduled, const PlanRequest& request) {
  if (policy_table()[scheduled.policy].border.empty() || !request.overlap.across_steps) return "";
  const std::string may_not = why_not_across_steps(request);
  return may_not.empty() ? scheduled.whole().why_not_across_steps : may_not;
}

Result<ir::Plan> make_unpredicted_plan(const ir::Program& logical, ir::Program step, const PlanRequest& request,
                                       Pipeline pipeline, PlanReport* report) {
  if (request.overlap.policy != sequential)
    return config_error(fmt::format("overlap.policy: expected a profile for {}, found none", request.overlap.policy));
  tell_if_slow(request, step.instructions.size());
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
  tell_if_slow(request, step.program().instructions.size());
  Schedules schedules(step, request, pipeline);
  PlanReport made;
  const Scheduled& chosen = choose(schedules, request, made);
  made.chosen = policy_table()[chosen.policy].name;
  made.why_not_across_steps = why_ends_in_step(chosen, request);
  if (chosen.policy == Schedules::index_of(sequential))
    made.why_not_across_steps = why_ends_in_step(schedules.of(request.overlap.policy), request);
  const schedule::Timeline& timeline = chosen.whole().timeline;
  Pipeline passes = chosen.run ? chosen.run->pipeline : chosen.pipeline;
  ir::Plan plan = plan_of(chosen.whole(), passes);
  set_step_header(plan, logical, made.chosen, request);
  if (const std::string profile = request.costs->identity(); !profile.empty()) plan.header.set("profile", profile);
  plan.header.set("predicted_ms", timeline.makespan);
  plan.header.set("exposed_ms", timeline.exposed);
  if (!report) return plan;
  const auto table = policy_table();
  const bool all = table[Schedules::index_of(request.overlap.policy)].passes.empty() ||
                   (request.compare && step.program().instructions.size() <= compared_step);
  for (const Policy& policy : table) {
    const bool asked = policy.name == sequential || policy.name == request.overlap.policy;
    if (policy.passes.empty() || !(asked || (all && is_compared(policy, request.micro_batches)))) continue;
    const Candidate& tried = schedules.of(policy.name).whole();
    made.policies.push_back({std::string(policy.name), tried.how, tried.timeline, schedule::most_parts(tried.program),
                             schedule::arena_bytes(tried.program, tried.needed)});
  }
  made.passes = passes.runs();
  made.requested = request.overlap.policy;
  made.lower_bound = lower_bound_of(schedules.of(sequential).whole(), step.costs().interference());
  if (request.bounds) made.bounds = bounds_of(step, chosen.candidate, request.overlap.memory_factor);
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

std::string why_not_across_steps(const PlanRequest& request) {
  const passes::OptimizeOptions& optimizer = request.optimizer;
  if (!request.overlap.across_steps) return "overlap.across_steps is false";
  if (request.gradient_sums.shards) return "";  // at least the gathers of updated weights may
  if (optimizer.guard) return "train.on_non_finite is skip, so that updates wait for the norm of all gradients";
  if (optimizer.clip_grad > 0)
    return fmt::format("train.clip_grad is {}, so that updates wait for the norm of all gradients",
                       optimizer.clip_grad);
  return "";
}

std::vector<PolicyInfo> policies() {
  std::vector<PolicyInfo> result;
  for (const Policy& policy : policy_table()) result.push_back({policy.name, policy.what, policy.cuts});
  return result;
}

std::vector<std::string_view> compared_policies(std::int64_t micro_batches) {
  std::vector<std::string_view> names;
  for (const Policy& policy : policy_table())
    if (!policy.passes.empty() && is_compared(policy, micro_batches)) names.push_back(policy.name);
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

Made schedule_micro_batch(const Step& step, std::string_view policy, PlanRequest request, const Pipeline& pipeline) {
  request.micro_batches = 1;
  request.overlap.across_steps = false;
  return Schedules(step, request, pipeline).of(policy);
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
  if (request.memory_limit == 0) return programs;
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
  const PlanMaker make = [&](ir::Program whole, const PlanRequest& wanted, Pipeline passes, PlanReport* to) {
    return schedule_step(logical, std::move(whole), wanted, std::move(passes), to);
  };
  if (request.memory_limit > 0) return plan_within_memory(program, request, pipeline, make, report);
  return make(std::move(program), request, std::move(pipeline), report);
}

}  // namespace lancet::planner
