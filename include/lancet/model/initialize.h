// Initial values of parameters, a function of (seed, parameter name, element) and thus the same at any number of ranks.
// GPT-2's scheme: normal with initializer_range, projections back into the residual divided by sqrt(2 * n_layer), layer
// norms 1 and 0, biases 0, padded vocabulary 0. Each expert draws its own numbers.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "lancet/config/config.h"
#include "lancet/ir/program.h"

namespace lancet::model {

// Fills `values` (the whole tensor as this rank holds it, f32). rank and ranks determine this rank's experts.
void initialize(const config::Model& model, std::string_view name, const ir::TensorType& type, int rank, int ranks,
                std::uint64_t seed, std::span<float> values);

}  // namespace lancet::model
