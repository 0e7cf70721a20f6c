// Placement of the experts of each MoE layer on unlike devices, a rank each: how many experts a rank holds
// (mesh.expert_counts), which `lancet train` runs. A rank computes what comes to its experts, and everything else in
// equal shares. A placement is judged by the planner: the plan of overlap.policy, its simulated step, and what
// parameters, states, inputs and the arena take of the smallest memory, since each rank has room for as many experts as
// the one with the most.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/placement/cluster.h"

namespace lancet::placement {

struct ExpertShares {
  std::vector<std::int64_t> counts;  // experts of a layer, by device of the cluster
  double step_ms = 0;
  std::int64_t bytes = 0, lacking = 0;        // of the memory of a device; beyond the smallest memory
  std::string hardware;                       // emulated.hardware, on which the placement runs
  std::vector<std::string> settings() const;  // "mesh.expert_counts=[8,4]", ..., for --set
};

struct ExpertAnswer {
  ExpertShares best;
  ExpertShares even;  // equal shares, the first devices with one more; step_ms 0: they cannot be planned: no_even
  std::string no_even;
  int planned = 0;  // shares
};

// Plans these shares. Config errors: those of planning::plan_offline.
Result<ExpertShares> plan_experts(const config::Config& config, const Cluster& cluster,
                                  const std::vector<std::int64_t>& counts);

// From equal shares, or shares by the devices' times of an expert, the best move of experts from one device to another
// is taken as long as one makes the step shorter; of half of a share first, of one expert last. Ends by then or after
// `seconds`. The model's experts are those that it has on one rank. Config errors: a config with a mesh; fewer than two
// devices, or devices without a path; fewer experts than devices; no shares that were planned fit, with the reason of
// the last.
Result<ExpertAnswer> place_experts(const config::Config& config, const Cluster& cluster, double seconds = 30);

}  // namespace lancet::placement
