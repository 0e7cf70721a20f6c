// Replanning: whether the tokens still spread over the ranks as the plan expects (overlap.replan).
#pragma once
#include <optional>

#include "lancet/checkpoint/manifest.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/run/run_plans.h"

namespace lancet::train {

class Replanning {
 public:
  // Off without overlap.replan, and where there is nothing to choose: one rank, the policy sequential, a plan file.
  Replanning(const config::Config& config, int ranks, bool has_plan_file, const checkpoint::LoadHistory& history);

  // The load that the plans are to be made for; none: the one that the costs hold for.
  std::optional<cost::RankLoad> planned() const;
  const checkpoint::LoadHistory& history() const { return history_; }

  // Planning is due: for which load, and the step that the running plans are predicted to take under it.
  struct Departure {
    cost::RankLoad load;
    double predicted_ms = 0;
  };
  // Collective: counts the load of a step (1 is the first), and at every overlap.replan-th step compares what the plans
  // are predicted to take under the mean load since the last comparison and under the load last planned for.
  Result<std::optional<Departure>> after_step(std::int64_t step, const cost::RankLoad& load,
                                              const run::StepPlans& plans, comm::Communicator& world);
  // Plans were made for this load; taken: they run from now on.
  void set_planned(const cost::RankLoad& load, bool taken);

 private:
  const std::int64_t interval_;  // steps; 0: off
  const std::int64_t last_step_, micro_batches_;
  checkpoint::LoadHistory history_;
};

}  // namespace lancet::train
