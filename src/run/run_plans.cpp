// The product algorithms in the profile come first: all ranks use them in the run and in the measurements. Then come
// the costs: a policy that chooses among schedules needs them all, so missing ones are measured; for the sequential
// policy the costs in the file only serve to predict the step. Rank 0 plans while the other ranks wait
// (stream_communicators.h), and share_plan() broadcasts each plan as text. A plan file replaces this search; every rank
// reads and checks it.
#include "lancet/run/run_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/planned_step.h"
#include "lancet/run/step_costs.h"
#include "lancet/run/stream_communicators.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"

namespace lancet::run {
namespace {

// Of the plans of all stages, this rank's own and, if there are several, all.
void take_own(const config::Config& config, const comm::Communicator& world, std::vector<ir::Plan> stages,
              ir::Plan& own, std::vector<ir::Plan>& all) {
  const ir::Mesh mesh = config::mesh_of(config, world.size());
  own = stages[std::size_t(mesh.coordinate(world.rank(), ir::Axis::stage))];
  all = stages.size() > 1 ? std::move(stages) : std::vector<ir::Plan>();
}

class Planning {
 public:
  Planning(const config::Config& config, comm::Communicator& world, const RunPlanOptions& options,
           const ProfileRequest& request)
      : config_(config), world_(world), options_(options), request_(request), costs_(options.costs) {}

  Status plan(StepPlans& plans) {
    const bool searches = config_.mesh.stage > 1 && config::searches(config_.train.pipeline_schedule);
    const bool chooses = config_.overlap.policy != "sequential" || searches;
    needs_costs_ = chooses && world_.size() > 1;
    if (!costs_) LANCET_TRY(find_costs());
    plans.costs = costs_;
    plans.measured = profile_;
    std::unique_ptr<const cost::Costs> loaded;
    if (costs_ && options_.load) {
      loaded = costs_->under(*options_.load);
      costs_ = loaded.get();
    }
    LANCET_ASSIGN(std::vector<ir::Plan> stages, plan_on_rank0(chooses ? &plans.report : nullptr));
    take_own(config_, world_, std::move(stages), plans.step, plans.step_stages);
    return {};
  }

 private:
  // Measures missing costs if planning needs them; else reads those that the file holds, to predict the step.
  Status find_costs() {
    if (needs_costs_) {
      LANCET_ASSIGN(const int hosts, agreed_hosts(world_, request_.local_ranks));
      LANCET_ASSIGN(const std::vector<ir::Program> programs,
                    planner::programs_to_profile(config_, world_.size(), hosts));
      LANCET_ASSIGN(auto ensured, ensure_profile(config_, world_, programs, request_));
      profile_ = std::make_shared<const cost::Profile>(std::move(ensured));
    } else if (world_.rank() == 0) {
      const cost::Machine machine = machine_of(config_, world_, options_.local_ranks, options_.accelerator);
      const std::filesystem::path path = profile_path(config_, options_.profile_folder, machine);
      if (path.empty()) return {};
      auto held = cost::read_profile(path, machine);
      if (held.ok()) held->mesh = config::mesh_of(config_, world_.size());
      if (held.ok())
        profile_ = std::make_shared<const cost::Profile>(*std::move(held));
      else if (!config_.overlap.profile.empty())
        log::warn("overlap.profile is not used: {}; the step is not predicted", held.error().message);
    }
    costs_ = profile_.get();
    return {};
  }

  Result<std::vector<ir::Plan>> plan_on_rank0(planner::PlanReport* report) {
    Result<std::vector<ir::Plan>> plans = std::vector<ir::Plan>();
    LANCET_TRY(run::run_on_rank0(world_, run::turn_of(config_), [&] {
      plans = planner::plan_stages(config_, world_.size(),
                                   {.costs = costs_,
                                    .costs_may_lack_ops = !needs_costs_,
                                    .crowded = options_.crowded,
                                    .inspect = options_.inspect},
                                   report);
    }));
    return planner::share_plans(world_, std::move(plans), std::size_t(config_.mesh.stage));
  }

  const config::Config& config_;
  comm::Communicator& world_;
  const RunPlanOptions& options_;
  const ProfileRequest& request_;
  bool needs_costs_ = false;
  std::shared_ptr<const cost::Profile> profile_;
  const cost::Costs* costs_;
};

}  // namespace

namespace {

// The plans of a stage share an arena. An evaluation makes nothing again.
Status check_evaluation(const config::Config& config, const StepPlans& plans) {
  constexpr std::int64_t mb = 1'000'000;
  const std::int64_t limit = config.train.memory_limit_mb * mb;
  std::int64_t bytes = schedule::resident_bytes(plans.step.program) + plans.evaluate->arena_bytes;
  for (std::size_t stage = 0; stage < plans.step_stages.size(); ++stage)
    bytes = std::max(
        bytes, schedule::resident_bytes(plans.step_stages[stage].program) + plans.evaluate_stages[stage].arena_bytes);
  if (limit == 0 || bytes <= limit) return {};
  return config_error(
      fmt::format("train.memory_limit_mb: expected at least {}, which a rank needs for an evaluation, "
                  "found {}",
                  (bytes + mb - 1) / mb, config.train.memory_limit_mb));
}

}  // namespace

Result<StepPlans> make_step_plans(const config::Config& config, comm::Communicator& world,
                                  const RunPlanOptions& options, bool evaluates) {
  StepPlans plans;
  const ProfileRequest request{.local_ranks = options.local_ranks,
                               .profile_folder = options.profile_folder,
                               .accelerator = options.accelerator,
                               .interrupted = options.interrupted};
  LANCET_TRY(take_product_choices(config, world, request));
  if (!options.plan_file.empty()) {
    LANCET_ASSIGN(plans.step, planner::read_same_plan(options.plan_file, config, world));
    plans.report.chosen = plans.report.requested = plans.step.header.text("policy");
  } else {
    LANCET_TRY(Planning(config, world, options, request).plan(plans));
  }
  if (evaluates) {
    const int ranks = world.size();
    LANCET_ASSIGN(std::vector<ir::Plan> stages,
                  planner::share_plans(world,
                                       planner::plan_forward_stages(
                                           config, planner::build_options(config, model::Mode::evaluate, ranks), ranks),
                                       std::size_t(config.mesh.stage)));
    take_own(config, world, std::move(stages), plans.evaluate.emplace(), plans.evaluate_stages);
    LANCET_TRY(comm::agree(world, check_evaluation(config, plans)));
  }
  return plans;
}

namespace {

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

std::optional<double> predicted_ms(const StepPlans& plans, std::int64_t micro_batches) {
  const double run_ms = plans.step.header.real("predicted_ms", 0);
  if (run_ms <= 0) return {};
  return step_ms(plans.step.program, plans.step.predicted, run_ms, micro_batches);
}

Result<double> predicted_ms(const StepPlans& plans, std::int64_t micro_batches, const cost::RankLoad& load) {
  const auto costs = plans.costs->under(load);
  LANCET_ASSIGN(const schedule::Timeline timeline, schedule::simulate(plans.step, *costs));
  return step_ms(plans.step.program, timeline.when, timeline.makespan, micro_batches);
}

}  // namespace lancet::run
