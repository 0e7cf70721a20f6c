// The positions of a sequence that ranks split: its tokens, and padding after them, so that all have shards of one
// shape.
#pragma once
#include <cstdint>

namespace lancet::mesh {

// S', the least multiple of `ranks` that is no less than `tokens`. Neither is negative, and ranks is not 0.
constexpr std::int64_t padded_sequence(std::int64_t tokens, std::int64_t ranks) {
  return (tokens + ranks - 1) / ranks * ranks;
}

}  // namespace lancet::mesh
