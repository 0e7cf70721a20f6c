// The mixture-of-experts layer: a gate routes each token to experts, which are FFNs.
#pragma once
#include <cstdint>

#include "builder.h"

namespace lancet::model {

// Appends the layer of a block to the Program, of which "h.0" is the first one's name: [B,S,D] -> [B,S,D].
TensorId moe_layer(Builder& builder, std::int64_t block, TensorId x);

}  // namespace lancet::model
