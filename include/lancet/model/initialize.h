// Initial values of parameters, a function of (seed, parameter name, element) and thus the same at any number of ranks.
// GPT-2's scheme: normal with initializer_range, projections back into the residual divided by sqrt(2 * n_layer), layer
// norms 1 and 0, biases 0, padded vocabulary 0. Each expert draws its own numbers.
#pragma once
#include <cstdint>
#include <span>

#include "lancet/model/gpt2_moe.h"

namespace lancet::model {

// Fills `values` (the whole tensor as this rank holds it, f32). The rank's coordinate on the mesh's axis
// `expert` determines which experts are its own.
void initialize(const Parameter& parameter, int expert_coordinate, std::uint64_t seed, std::span<float> values);

}  // namespace lancet::model
