// Helpers of all transports: names of operations and ranks in errors, checks of segments, copies to oneself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

enum class Operation : std::uint8_t { barrier, broadcast, send_receive, all_reduce_sum, split };
inline constexpr int operation_count = 5;

std::string_view name(Operation operation);
std::string list_ranks(const std::vector<int>& ranks);  // "rank 3", "ranks 1, 2, 3"
// A rank and its communicator in errors: "rank 5 of 8", and "rank 5 of ranks 1, 5" in a group of a world of 8.
// ranks: those of the communicator, as the world numbers them.
std::string describe_rank(int place, const std::vector<int>& ranks, std::size_t world_size);
// Returns an error that names the first segment whose peer is not a rank; `what` is "send" or "receive".
Status check_peers(std::span<const Segment> segments, std::string_view what, int rank, int size);
// Returns an error unless `members` are ranks of 0 to size - 1, ascending, with `rank` among them.
Status check_members(std::span<const int> members, int rank, int size);
// members_of: for each rank, the members of its group. Returns an error that names two ranks whose groups overlap.
Status check_groups(const std::vector<std::vector<int>>& members_of);
// Copies the segments that `rank` sends to itself into those that it receives from itself, in order.
Status copy_to_self(std::span<const Segment> sends, std::span<const Segment> receives, int rank);
// Returns the next non-empty segment of `peer` from index `at` on, or null; sets `at` to the index after it.
const Segment* next_of_peer(std::span<const Segment> segments, int peer, std::size_t& at);

// The summation that every transport uses for all-reduce, so that all give the same bits.

// out[i] = (parts[0][i] + parts[1][i]) + ..., with one part per rank, in the order of the ranks. `out` may be one of
// the parts; otherwise none overlap. At least one part.
void sum_in_rank_order(std::span<const float* const> parts, float* out, std::size_t count);

}  // namespace lancet::comm
