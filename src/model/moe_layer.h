// The mixture-of-experts layer: a gate routes each token to experts, which are FFNs.
#pragma once
#include <string>

#include "builder.h"

namespace lancet::model {

// Appends layer `name` ("h.0") to the Program: [B,S,D] -> [B,S,D].
TensorId moe_layer(Builder& builder, const std::string& name, TensorId x);

}  // namespace lancet::model
