// Tokens and their merges, as a tokenizer numbers them.
#pragma once
#include <cstdint>

namespace lancet::data {

using TokenId = std::int32_t;  // the element type of the model's input tensor

// The merge of two neighbouring tokens; its rank is its index in the list of merges.
struct Merge {
  TokenId left = -1, right = -1;
  friend bool operator==(const Merge&, const Merge&) = default;
};

}  // namespace lancet::data
