// The summation that every transport uses for all-reduce, so that all give the same bits.
#pragma once
#include <cstddef>
#include <span>

namespace lancet::comm {

// out[i] = (parts[0][i] + parts[1][i]) + ..., with one part per rank, in the order of the ranks. `out` may be one of
// the parts; otherwise none overlap. At least one part.
void sum_in_rank_order(std::span<const float* const> parts, float* out, std::size_t count);

}  // namespace lancet::comm
