#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace lancet::train {

// What a micro batch says of its MoE layers, an entry for each. In the memory of the executor.
struct LayerOutputs {
  std::vector<const float*> aux;             // auxiliary loss and router entropy; empty if routers have no scores
  std::vector<std::span<const float>> load;  // [2L,E]: choices of each expert and those kept, of L runs of tokens
  std::vector<const float*> z_loss;          // empty without one
  std::vector<const std::int32_t*> rounds;   // in which choices are served; empty if capacity drops some
  std::vector<std::span<const float>> bias;  // [E], after the step; empty if experts have none
};

}  // namespace lancet::train
