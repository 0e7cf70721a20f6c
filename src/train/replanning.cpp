#include "replanning.h"

#include <cmath>

#include "lancet/world/agree.h"

namespace lancet::train {
namespace {

// The mean error of predicted steps on emulated clusters (docs/results/fig14.md). Where the prediction has changed by
// less, the load has not left the planned one as far as the simulator can tell.
constexpr double prediction_error = 0.019;

}  // namespace

Replanning::Replanning(const config::Config& config, int ranks, bool has_plan_file,
                       const checkpoint::LoadHistory& history)
    : interval_(ranks > 1 && config.overlap.policy != "sequential" && !has_plan_file ? config.overlap.replan : 0),
      last_step_(config.train.steps),
      micro_batches_(config.train.gradient_accumulation_steps),
      history_(history) {}

std::optional<cost::RankLoad> Replanning::planned() const {
  if (interval_ == 0 || !history_.is_planned_for) return {};
  return cost::RankLoad{history_.planned_fullest, history_.planned_kept};
}

Result<std::optional<Replanning::Departure>> Replanning::after_step(std::int64_t step, const cost::RankLoad& load,
                                                                    const planning::StepPlans& plans,
                                                                    comm::Communicator& world) {
  if (interval_ == 0) return std::optional<Departure>();
  history_.fullest_sum += load.fullest;
  history_.kept_sum += load.kept;
  ++history_.steps;
  if (step % interval_ != 0 || step >= last_step_) return std::optional<Departure>();
  const auto steps = double(history_.steps);
  Departure departure{{history_.fullest_sum / steps, history_.kept_sum / steps}};
  history_.fullest_sum = history_.kept_sum = 0;
  history_.steps = 0;
  LANCET_ASSIGN(departure.predicted_ms, planning::predicted_ms(plans, micro_batches_, departure.load));
  const double planned_ms = *planning::predicted_ms(plans, micro_batches_);
  // The counts are sums over the ranks and the costs are the same on all, so that the ranks find the same.
  LANCET_ASSIGN(const bool departs,
                world::any(world, std::abs(departure.predicted_ms / planned_ms - 1) > prediction_error));
  return departs ? std::optional(departure) : std::nullopt;
}

void Replanning::set_planned(const cost::RankLoad& load) {
  history_.is_planned_for = true;
  history_.planned_fullest = load.fullest;
  history_.planned_kept = load.kept;
}

}  // namespace lancet::train
