// The description of an attention on a GPU (attention.h).
#pragma once
#include <compare>
#include <cstdint>

namespace lancet::backend::cuda {

struct AttentionDesc {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;  // heads: of keys
  bool backward = false;
  bool deterministic = true;  // false: the backward pass may sum dq in any order
  std::int64_t group = 1;     // heads of queries that read a head of keys
  bool part = false;          // of a sequence: keys and values are those of `before` positions more than the queries'
  std::int64_t before = 0;
  std::int64_t keys() const { return before + sequence; }
  friend auto operator<=>(const AttentionDesc&, const AttentionDesc&) = default;
};

}  // namespace lancet::backend::cuda
