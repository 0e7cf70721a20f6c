// StepSpeed: how fast steps are, as tokens per second and as MFU, and how fast the plans predict them to be.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/run/metrics.h"
#include "lancet/run/run_plans.h"
#include "rank_resources.h"
#include "step_tally.h"

namespace lancet::train {

struct Peak {
  double flops = 0;    // of one rank, per second; 0: not known
  std::string source;  // "log.peak_tflops"
};

// Flops of a program that MFU counts: products and attention, forward and backward, with the causal half of the
// attention, and experts on the rows that they get if no token is dropped. dense: all but the experts' flops; experts:
// theirs.
struct ProductFlops {
  double dense = 0, experts = 0;
};
ProductFlops product_flops(const ir::Program& program);

// The share of the tokens that even routing keeps: below 1 if the capacity factor is. experts: of a layer, over all
// ranks.
double even_share(const config::Config& config, std::int64_t experts);

class StepSpeed {
 public:
  // config: outlives this object.
  StepSpeed(const config::Config& config, int ranks) : config_(config), ranks_(ranks) {}
  // Collective: the peak that the config names, or else the largest that was measured on this machine; profile_folder
  // keeps it.
  Status measure_peak(comm::Communicator& world, const RankResources& resources, const std::string& profile_folder);
  // Reads the predicted time of a whole step from the plan, and counts the flops of a run.
  void set_plans(const run::StepPlans& plans);

  const Peak& peak() const { return peak_; }
  double tokens() const;  // of a step, over all ranks
  // Fills in the times of a step that took `seconds`, its tokens per second and its MFU. tally: of this step.
  void fill(run::StepRecord& record, double seconds, const StepTally& tally) const;
  // The share of the rows counted in ProductFlops::experts that hold kept tokens; 0 without MoE layers.
  double kept_share(const StepTally& tally) const;

 private:
  const config::Config& config_;
  const int ranks_;
  Peak peak_;
  ProductFlops flops_;                  // of a run of the plan
  std::int64_t micro_batches_ = 1;      // likewise
  std::optional<double> predicted_ms_;  // of a whole step
};

}  // namespace lancet::train
