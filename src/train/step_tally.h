// Sums over the micro batches of one step: times of the streams, and the distribution of tokens over experts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/cost/costs.h"
#include "lancet/run/metrics.h"
#include "lancet/run/run_plans.h"
#include "lancet/runtime/executor.h"
#include "layer_outputs.h"
#include "rank_resources.h"

namespace lancet::train {

class StepTally {
 public:
  StepTally() = default;
  // experts: per layer, over all ranks.
  StepTally(std::size_t layers, std::size_t experts);

  void clear();
  // Adds a micro batch. The biases are those of the last one that has any.
  void add(const LayerOutputs& layers);
  // Adds the times of one run of a plan.
  void add(const runtime::StepTimes& times);
  // Fills in the streams' times, the statistics of the gates, and, unless the rank is alone and its all-to-alls are
  // copies, the exposed and hidden time. tokens: of the step, over all ranks.
  void fill(run::StepRecord& record, bool alone, double tokens);
  double kept() const;  // tokens, over all layers
  // ranks: the size of the mesh's axis `expert`. even_share: the share of the tokens that even routing keeps.
  cost::RankLoad rank_load(int ranks, double even_share) const;
  double late_ms() const { return times_.late; }  // runtime::StepTimes::late
  std::size_t experts() const { return experts_; }
  std::span<const run::LayerLoad> layers() const { return layers_; }  // as of the last fill()

 private:
  run::LayerLoad load_of(std::size_t layer, double tokens) const;

  std::size_t experts_ = 0;
  runtime::StepTimes times_;
  std::optional<std::int64_t> rounds_;                       // the most of a layer
  std::vector<double> chosen_, kept_;                        // by layer and expert
  std::vector<double> entropy_;                              // by layer
  std::vector<std::optional<double>> z_loss_, bias_spread_;  // by layer
  std::vector<run::LayerLoad> layers_;
};

// StepSpeed: how fast steps are, as tokens per second and as MFU, and how fast the plans predict them to be.
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
