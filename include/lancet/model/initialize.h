// Initial values of parameters, a function of (seed, parameter name, element) and thus the same at any number of ranks.
// GPT-2's scheme: normal with initializer_range, projections back into the residual divided by sqrt(2 * n_layer), layer
// norms 1 and 0, biases 0, padded vocabulary 0. Each expert draws its own numbers.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/ir/sharding.h"
#include "lancet/model/gpt2_moe.h"

namespace lancet::model {

// Fills `values` with those elements of the parameter that a rank holds, which `held` says: value i is held element i.
// InternalError: another number of values, or elements that the parameter has not.
void initialize(const Parameter& parameter, std::uint64_t seed, const std::vector<ir::HeldRun>& held,
                std::span<float> values);

}  // namespace lancet::model
