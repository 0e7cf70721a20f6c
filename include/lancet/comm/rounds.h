// The rounds of an all-reduce over MPI, which bound how long another stream's messages wait for it.
#pragma once
#include <algorithm>
#include <cstddef>

namespace lancet::comm {

// Floats that a round sums, on all ranks together. Another stream's messages wait for up to three rounds, since they go
// to the same peers over the same connections: at 1.25 GB/s, among 4 ranks, an all-to-all of 2 ms took 4 ms beside an
// all-reduce in rounds of 1 MB (11 ms in rounds of 4 MB). With 2 ranks and no limited network, 4 MB take 1.1 ms either
// way, but a third longer or more in rounds of 512 KB, since waking a thread takes as long as a round.
inline constexpr std::size_t round_floats = 256 * 1024;
// Among many ranks a message is no shorter than this (64 KB), so that its own cost stays small.
inline constexpr std::size_t shortest_piece = 16 * 1024;

// The floats that one rank sums in a round.
constexpr std::size_t floats_of_rank(std::size_t ranks) { return std::max(round_floats / ranks, shortest_piece); }

}  // namespace lancet::comm
