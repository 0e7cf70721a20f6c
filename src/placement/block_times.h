// What each block of a model takes of each device, for the search of stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/placement/problem.h"

namespace lancet::placement {

// A block; the first has the embedding, too. The last entry is what is after the blocks: norm, head and loss.
struct BlockTimes {
  struct OfDevice {
    double chain_ms = 0;   // forward pass and gradients of activations of a micro batch
    double micro_ms = 0;   // with the gradients of weights
    double update_ms = 0;  // once a step
  };
  std::vector<OfDevice> on;      // by device
  std::int64_t held = 0;         // bytes of parameters, states and gradients
  std::int64_t activations = 0;  // bytes of a micro batch that its backward pass reads
};

// config: the step on one rank.
Result<std::vector<BlockTimes>> block_times(const config::Config& config, const Cluster& cluster);

// What no split of the step takes less than: the largest of its longest op on the fastest device, all ops split among
// all devices at will, and the chain of a micro batch on the fastest devices, without messages. The ops are those of
// the step without stages, since a cut parts ops that are fused and gives two stages what is shared.
Result<double> least_of_splits_ms(const config::Config& config, const Cluster& cluster);

// A device of a cluster as a host of an emulated one.

// The hardware of a device whose one link has this rate and latency, alone on its host: a value of emulated.hardware.
std::string with_link(const Cluster::Device& device, double gbit_per_s, double latency_ms);

}  // namespace lancet::placement
