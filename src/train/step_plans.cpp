#include "step_plans.h"

#include "lancet/cost/exchange_choice.h"
#include "lancet/train/plan.h"
#include "lancet/train/profile.h"
#include "lancet/train/turns.h"
#include "setup.h"

namespace lancet::train {
namespace {

class Planning {
 public:
  Planning(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : config_(config), world_(world), options_(options), costs_(options.costs) {}

  Status plan(StepPlans& plans) {
    const bool chooses = config_.overlap.policy != config::Policy::sequential;
    needs_costs_ = chooses && world_.size() > 1;
    if (!costs_) LANCET_TRY(find_costs());
    LANCET_ASSIGN(plans.update, plan_on_first(true, chooses ? &plans.report : nullptr));
    if (config_.train.gradient_accumulation_steps > 1) {
      LANCET_ASSIGN(plans.micro, plan_on_first(false, nullptr));
    }
    if (costs_) plans.exchanges = cost::to_string(cost::exchange_choice(*costs_, plans.update.program));
    return {};
  }
  // Null: not known.
  const cost::Costs* costs() const { return costs_; }

 private:
  // Measured where they are needed; else what the file happens to hold, so that the step is predicted, too.
  Status find_costs() {
    if (needs_costs_) {
      LANCET_ASSIGN(profile_, ensure_profile(config_, world_, step_programs(config_, world_.size()),
                                             {.local_ranks = options_.local_ranks,
                                              .default_path = options_.default_profile,
                                              .accelerator = options_.accelerator}));
    } else if (world_.rank() == 0) {
      const std::string path = config_.overlap.profile.empty() ? options_.default_profile : config_.overlap.profile;
      if (path.empty()) return {};
      auto held = cost::read_profile(path, place_of(config_, world_, options_.local_ranks, options_.accelerator));
      if (held.ok()) profile_ = *std::move(held);
    }
    if (!profile_) return {};
    profile_->asked = asked_exchanges(config_);
    costs_ = &*profile_;
    return {};
  }

  // Planning is rank 0's; the others learn what it found.
  Result<ir::Plan> plan_on_first(bool update, planner::PlanReport* report) {
    Result<ir::Plan> plan = ir::Plan();
    LANCET_TRY(let_first_work(world_, turn_of(config_), [&] { plan = planned(update, report); }));
    return share_plan(world_, plan);
  }
  Result<ir::Plan> planned(bool update, planner::PlanReport* report) const {
    const bool inspect = update && options_.inspect;
    auto plan = plan_step(config_, world_.size(), update, inspect, costs_, report);
    // Costs that are not needed need not be complete.
    if (!plan.ok() && costs_ && !needs_costs_) {
      plan = plan_step(config_, world_.size(), update, inspect, nullptr, report);
      if (plan.ok()) cost::mark_counted(*costs_, plan->program);
    }
    return plan;
  }

  const config::Config& config_;
  comm::Communicator& world_;
  const TrainerOptions& options_;
  bool needs_costs_ = false;
  std::optional<cost::Profile> profile_;
  const cost::Costs* costs_;
};

}  // namespace

Result<StepPlans> make_step_plans(const config::Config& config, comm::Communicator& world,
                                  const TrainerOptions& options, bool evaluates) {
  StepPlans plans;
  Planning planning(config, world, options);
  LANCET_TRY(take_product_choices(config, world,
                                  {.local_ranks = options.local_ranks,
                                   .default_path = options.default_profile,
                                   .accelerator = options.accelerator}));
  if (!options.plan_file.empty()) {
    LANCET_ASSIGN(plans.update, read_same_plan(options.plan_file, config, world));
    plans.report.chosen = plans.report.asked = plans.update.header.text("policy");
  } else {
    LANCET_TRY(planning.plan(plans));
  }
  if (evaluates) {
    auto evaluate = plan_forward(config, model::Mode::evaluate, world.size());
    if (evaluate.ok() && planning.costs()) cost::mark_counted(*planning.costs(), evaluate->program);
    LANCET_ASSIGN(plans.evaluate, share_plan(world, evaluate));
  }
  return plans;
}

}  // namespace lancet::train
