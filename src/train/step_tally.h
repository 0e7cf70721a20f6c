// What the micro batches of one step add up to: times of the streams, and how the gates spread the tokens.
#pragma once
#include <span>
#include <vector>

#include "lancet/runtime/executor.h"
#include "lancet/run/metrics.h"

namespace lancet::train {

class StepTally {
 public:
  StepTally() = default;
  // experts: of a layer, over all ranks.
  StepTally(std::size_t layers, std::size_t experts);

  void clear();
  // One run of a plan. aux: of each MoE layer, auxiliary loss and router entropy. load: [2,E] each, the tokens that
  // chose an expert and those that it kept.
  void add(std::span<const float* const> aux, std::span<const std::span<const float>> load,
           const runtime::StepTimes& times);
  // Fills in the streams' times; what is hidden, unless the rank is alone and only copies; and the gates' numbers.
  void fill(run::StepRecord& record, bool alone);
  double kept() const;                                           // tokens, over all layers
  std::span<const run::LayerLoad> layers() const { return layers_; }  // as fill() left them

 private:
  run::LayerLoad load_of(std::size_t layer) const;

  std::size_t experts_ = 0;
  runtime::StepTimes times_;
  std::vector<double> chosen_, kept_;  // by layer and expert
  std::vector<double> entropy_;        // by layer
  std::vector<run::LayerLoad> layers_;
};

}  // namespace lancet::train
