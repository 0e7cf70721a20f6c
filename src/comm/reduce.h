#pragma once
#include <cstddef>
#include <span>

namespace lancet::comm {

// out[i] = (parts[0][i] + parts[1][i]) + ...: the one order of summation of every transport. `out` may be one of
// the parts; otherwise none overlap. At least one part.
void sum_in_rank_order(std::span<const float* const> parts, float* out, std::size_t count);

}  // namespace lancet::comm
