// Placement of a training step as pipeline stages, which `lancet train` runs: each stage has consecutive blocks of the
// model and a device of its own; some devices may stay unused. A step has train.gradient_accumulation_steps micro
// batches, in the order of train.pipeline_schedule. A placement is judged by the planner itself: its plans, their
// simulated step, and what each stage's parameters, states, inputs and arena take of its device's memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/placement/problem.h"

namespace lancet::placement {

struct StageSplit {
  std::vector<int> devices;  // of the cluster, by stage
  std::vector<int> blocks;   // by stage; the last may have none, and then has the head alone
  friend bool operator==(const StageSplit&, const StageSplit&) = default;
};

struct PlannedStages {
  StageSplit split;
  double step_ms = 0;
  double least_ms = 0;                   // what no order of this split goes below; 0 with one stage
  std::vector<double> compute_ms = {};   // by stage, of a step
  std::vector<std::int64_t> bytes = {};  // by stage, of its device's memory
  std::int64_t lacking = 0;              // bytes of memory, on the device that lacks most
  std::string hardware;                  // emulated.hardware, on which the placement runs
  bool fits() const { return lacking == 0; }
  std::vector<std::string> settings() const;  // "mesh.stage=2", ..., for --set
};

// Plans a split. The link of a stage has one rate and latency, those of the slowest path that its messages take to or
// from the stages next to it, and of the sum over the first and the last stage, since a host has one link.
class StagePlanner {
 public:
  // config: one that check() accepts for one rank. Both outlive this object.
  StagePlanner(const config::Config& config, const Cluster& cluster) : config_(config), cluster_(cluster) {}
  // Errors: those of run::plan_offline, one of which is that a device's memory cannot hold the stage's parameters.
  Result<PlannedStages> plan(const StageSplit& split);
  int planned() const { return planned_; }

 private:
  const config::Config& config_;
  const Cluster& cluster_;
  int planned_ = 0;
};

struct StageSearchOptions {
  double seconds = 30;  // at most, beyond the splits that it begins with
};
struct StageAnswer {
  PlannedStages best;
  // Equal numbers of blocks on all devices in their order, as far as there are blocks; step_ms 0: it cannot be planned,
  // and no_even says why.
  PlannedStages even;
  std::string no_even;
  // No split has a shorter step: the longest op on its fastest device, all blocks each split among all devices at
  // will, or the chain of a micro batch on the fastest devices.
  double bound_ms = 0;
  int planned = 0;  // splits
};
// For each order of the devices, or with more than 4 for the fastest of them, a dynamic program makes the split whose
// slowest stage is fastest; the planner ranks the best of these, the even one is among them, and moves shift borders,
// swap devices and add or remove one. Config errors: a config that has a mesh or interleaved stages; no split that was
// planned fits, with what the nearest needs; none could be planned, with the reason of the last.
Result<StageAnswer> place_stages(const config::Config& config, const Cluster& cluster,
                                 const StageSearchOptions& options = {});

}  // namespace lancet::placement
