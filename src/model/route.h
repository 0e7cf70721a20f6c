// The route of an MoE layer's tokens to experts: router, choice and gate, and the losses that keep the loads even.
#pragma once
#include <cstdint>

#include "builder.h"

namespace lancet::model {

// What a gate decides about T tokens with K choices each.
struct Route {
  TensorId expert, weight, slot;  // [T,K]
  TensorId filled;                // i32[E,2]
};

// Appends the router of a block to the Program. x: [B,S,D]. groups: of neighbouring sequences, in each of which an
// expert keeps at most `capacity` choices.
Route route(Builder& builder, std::int64_t block, TensorId x, std::int64_t groups, std::int64_t capacity);

}  // namespace lancet::model
