// What the ranks learn from a step: its times and loads, whether the plan still fits them, the tensor that made it
// fail, and its trace.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/run/metrics.h"
#include "lancet/run/run_plans.h"
#include "lancet/runtime/executor.h"
#include "rank_state.h"

namespace lancet::train {

// Sums over the micro batches of one step: times of the streams, and the distribution of tokens over experts.
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
  double kept() const;                              // tokens, over all layers
  std::vector<std::vector<double>> chosen() const;  // by layer and expert, the tokens that chose it
  double late_ms() const { return times_.late; }    // runtime::StepTimes::late
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

// How fast steps are, as tokens per second and as MFU, and how fast the plans predict them to be.
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

// Whether the tokens still spread over the experts as the plan expects (overlap.replan).
class Replanning {
 public:
  // Off without overlap.replan, and where there is nothing to choose: one rank, the policy sequential, a plan file.
  Replanning(const config::Config& config, const cost::Layout& ranks_on_hosts, bool has_plan_file,
             const checkpoint::LoadHistory& history);

  // The loads that the plans are to be made for; null: those that the costs hold for.
  std::shared_ptr<const cost::Loads> planned() const { return interval_ > 0 ? loads_of(history_.planned) : nullptr; }
  const checkpoint::LoadHistory& history() const { return history_; }

  // Planning is due: for which loads, and the step that the running plans are predicted to take under them.
  struct Departure {
    std::shared_ptr<const cost::Loads> loads;
    double predicted_ms = 0;
  };
  // Collective: notes the counts of a step (1 is the first), and at every overlap.replan-th step compares what the
  // plans are predicted to take under the loads since the last comparison and under those last planned for.
  Result<std::optional<Departure>> after_step(std::int64_t step, const StepTally& tally, const run::StepPlans& plans,
                                              comm::Communicator& world);
  // Plans were made for the departure; taken: they run from now on.
  void set_planned(bool taken);

 private:
  std::shared_ptr<const cost::Loads> loads_of(const checkpoint::LoadHistory::Counts& counts) const;

  const std::int64_t interval_;  // steps; 0: off
  const std::int64_t last_step_, micro_batches_;
  const cost::RoutedModel model_;
  checkpoint::LoadHistory history_;
};

// Fills the inputs of a run of the step's plan (0 is the first) and searches it (Executor::find_non_finite).
using SearchRun = std::function<Result<std::optional<runtime::NonFinite>>(int run)>;

// Collective: names the first tensor of a failed step that is not finite, by running its micro batches again on the
// same weights. If several ranks have one, that of the smallest place is named (runtime::NonFinite), since no other one
// can be its cause. program: the plan's, of which a step is `runs` runs.
Result<std::string> find_non_finite_cause(const config::Config& config, comm::Communicator& world,
                                          const ir::Program& program, int runs, const SearchRun& search);

// Collective: the text of trace.json (runtime/executor.h) on rank 0, empty elsewhere. stages: the plans of all pipeline
// stages; one, if there is one stage. mine: this rank's spans of its stage's plan.
Result<std::string> trace_ranks(const config::Config& config, comm::Communicator& world,
                                std::span<const ir::Plan> stages, std::span<const runtime::Span> mine);

}  // namespace lancet::train
