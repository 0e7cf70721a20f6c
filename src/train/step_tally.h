// Sums over the micro batches of one step: times of the streams, and the distribution of tokens over experts.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/run/metrics.h"
#include "lancet/runtime/executor.h"
#include "layer_outputs.h"

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

}  // namespace lancet::train
