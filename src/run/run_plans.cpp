// The product algorithms in the profile come first: all ranks use them in the run and in the measurements. Then come
// the costs: a policy that chooses among schedules needs them all, so missing ones are measured; for the sequential
// policy the costs in the file only serve to predict the step. Rank 0 plans while the other ranks wait
// (stream_communicators.h), and share_plans() broadcasts each plan as text. A plan file replaces this search; every
// rank reads and checks it.
#include "lancet/run/run_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/run/planned_step.h"
#include "lancet/run/stream_communicators.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"

namespace lancet::run {
namespace {

// Measures missing costs if planning needs them; else rank 0 reads those that the file holds, to predict the step.
Status find_costs(const planner::StepModel& model, comm::Communicator& world, const ProfileRequest& request,
                  bool needed, StepPlans& plans) {
  const config::Config& config = model.config;
  if (needed) {
    LANCET_ASSIGN(const int hosts, agreed_hosts(world, request.local_ranks));
    LANCET_ASSIGN(const std::vector<ir::Program> programs, planner::programs_to_profile(model, hosts));
    LANCET_ASSIGN(auto ensured, ensure_profile(config, world, programs, request));
    plans.measured = std::make_shared<const cost::Profile>(std::move(ensured));
  } else if (world.rank() == 0) {
    const cost::Machine machine = machine_of(config, world, request.local_ranks, request.accelerator);
    const std::filesystem::path path = profile_path(config, request.profile_folder, machine);
    if (path.empty()) return {};
    auto held = cost::read_profile(path, machine);
    if (held.ok()) held->mesh = config::mesh_of(config, world.size());
    if (held.ok())
      plans.measured = std::make_shared<const cost::Profile>(*std::move(held));
    else if (!config.overlap.profile.empty())
      log::warn("overlap.profile is not used: {}; the step is not predicted", held.error().message);
  }
  plans.costs = plans.measured.get();
  return {};
}

Status plan_steps(const planner::StepModel& model, comm::Communicator& world, const RunPlanOptions& options,
                  StepPlans& plans) {
  const config::Config& config = model.config;
  const bool searches = config.mesh.stage > 1 && config::searches(config.train.pipeline_schedule);
  const bool chooses = config.overlap.policy != "sequential" || searches;
  const bool needs_costs = chooses && world.size() > 1;
  plans.costs = options.costs;
  if (!plans.costs) LANCET_TRY(find_costs(model, world, options.profile, needs_costs, plans));
  const cost::Costs* costs = plans.costs;
  std::unique_ptr<const cost::Costs> loaded;
  if (costs && options.loads) {
    loaded = costs->under(options.loads);
    costs = loaded.get();
  }
  Result<std::vector<ir::Plan>> made = std::vector<ir::Plan>();
  LANCET_TRY(run_on_rank0(world, turn_of(config), [&] {
    made = planner::plan_stages(model,
                                {.costs = costs,
                                 .costs_may_lack_ops = !needs_costs,
                                 .crowded = options.crowded,
                                 .device_bytes = options.device_bytes},
                                chooses ? &plans.report : nullptr);
  }));
  LANCET_ASSIGN(plans.steps, planner::share_plans(world, std::move(made), std::size_t(config.mesh.stage)));
  return {};
}

// The plans of a stage share an arena. An evaluation makes nothing again.
Status check_evaluation(const config::Config& config, const StepPlans& plans) {
  constexpr std::int64_t mb = 1'000'000;
  const std::int64_t limit = config.train.memory_limit_mb * mb;
  std::int64_t bytes = 0;
  for (std::size_t stage = 0; stage < plans.steps.size(); ++stage)
    bytes =
        std::max(bytes, schedule::resident_bytes(plans.steps[stage].program) + plans.evaluations[stage].arena_bytes);
  if (limit == 0 || bytes <= limit) return {};
  return config_error(
      fmt::format("train.memory_limit_mb: expected at least {}, which a rank needs for an evaluation, "
                  "found {}",
                  (bytes + mb - 1) / mb, config.train.memory_limit_mb));
}

// The milliseconds of a step whose plan runs once for each `micro_batches_in_plan` of its micro batches. The runs
// before the last end with the last instruction that does not close the step.
double step_ms(const ir::Program& program, std::span<const ir::Interval> when, double run_ms,
               std::int64_t micro_batches) {
  const std::int64_t runs = micro_batches / ir::micro_batches(program);
  if (runs == 1) return run_ms;
  const std::vector<bool> closes = ir::closes_step(program);
  double earlier_ms = 0;
  for (std::size_t i = 0; i < when.size(); ++i)
    if (!closes[i]) earlier_ms = std::max(earlier_ms, when[i].end);
  return run_ms + double(runs - 1) * earlier_ms;
}

}  // namespace

Result<StepPlans> make_step_plans(const planner::StepModel& model, comm::Communicator& world,
                                  const RunPlanOptions& options, bool evaluates) {
  const config::Config& config = model.config;
  StepPlans plans;
  plans.mesh = config::mesh_of(config, world.size());
  plans.stage = std::size_t(plans.mesh.coordinate(world.rank(), ir::Axis::stage));
  LANCET_TRY(take_product_choices(config, world, options.profile));
  if (!options.plan_file.empty()) {
    LANCET_ASSIGN(ir::Plan plan, planner::read_same_plan(options.plan_file, model, world));
    plans.report.chosen = plans.report.requested = plan.header.text("policy");
    plans.steps.push_back(std::move(plan));
  } else {
    LANCET_TRY(plan_steps(model, world, options, plans));
  }
  if (evaluates) {
    const auto built = planner::build_options(config, model::Mode::evaluate, model.ranks);
    LANCET_ASSIGN(const std::vector<int> first_blocks, model.first_blocks);
    LANCET_ASSIGN(plans.evaluations,
                  planner::share_plans(world, planner::plan_forward(config, built, model.ranks, first_blocks),
                                       std::size_t(config.mesh.stage)));
    LANCET_TRY(comm::agree(world, check_evaluation(config, plans)));
  }
  return plans;
}

std::optional<double> predicted_ms(std::span<const ir::Plan> stages, std::int64_t micro_batches) {
  const double run_ms = stages.front().header.real("predicted_ms", 0);
  if (run_ms <= 0) return {};
  double ms = 0;
  for (const ir::Plan& plan : stages) ms = std::max(ms, step_ms(plan.program, plan.predicted, run_ms, micro_batches));
  return ms;
}

Result<double> predicted_ms(const StepPlans& plans, std::int64_t micro_batches,
                            std::shared_ptr<const cost::Loads> loads) {
  const auto costs = plans.costs->under(std::move(loads));
  LANCET_ASSIGN(const schedule::StagesTimeline times, schedule::simulate(plans.steps, plans.mesh, *costs));
  double ms = 0;
  for (std::size_t stage = 0; stage < plans.steps.size(); ++stage)
    ms = std::max(ms, step_ms(plans.steps[stage].program, times.stages[stage].when, times.makespan, micro_batches));
  return ms;
}

}  // namespace lancet::run
