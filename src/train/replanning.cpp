#include "replanning.h"

#include <cmath>

#include "lancet/comm/collect.h"

namespace lancet::train {
namespace {

// More than the mean error of predicted steps on emulated devices. Where the prediction has changed by less, the load
// has not left the planned one as far as the simulator can tell.
constexpr double prediction_error = 0.016;

std::optional<cost::RankLoad> rank_load(const std::optional<checkpoint::LoadHistory::Load>& load) {
  return load ? std::optional(cost::RankLoad{load->fullest, load->kept}) : std::nullopt;
}

}  // namespace

Replanning::Replanning(const config::Config& config, int ranks, bool has_plan_file,
                       const checkpoint::LoadHistory& history)
    : interval_(ranks > 1 && config.overlap.policy != "sequential" && !has_plan_file ? config.overlap.replan : 0),
      last_step_(config.train.steps),
      micro_batches_(config.train.gradient_accumulation_steps),
      history_(history) {}

std::optional<cost::RankLoad> Replanning::planned() const {
  return interval_ > 0 ? rank_load(history_.planned) : std::nullopt;
}

Result<std::optional<Replanning::Departure>> Replanning::after_step(std::int64_t step, const cost::RankLoad& load,
                                                                    const run::StepPlans& plans,
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
  LANCET_ASSIGN(departure.predicted_ms, run::predicted_ms(plans, micro_batches_, departure.load));
  double expected_ms = *run::predicted_ms(plans, micro_batches_);
  if (const auto compared = rank_load(history_.compared)) {
    LANCET_ASSIGN(expected_ms, run::predicted_ms(plans, micro_batches_, *compared));
  }
  // The counts are sums over the ranks and the costs are the same on all, so that the ranks find the same.
  LANCET_ASSIGN(const bool departs,
                comm::any(world, std::abs(departure.predicted_ms / expected_ms - 1) > prediction_error));
  return departs ? std::optional(departure) : std::nullopt;
}

void Replanning::set_planned(const cost::RankLoad& load, bool taken) {
  history_.compared = {load.fullest, load.kept};
  if (taken) history_.planned = history_.compared;
}

}  // namespace lancet::train
