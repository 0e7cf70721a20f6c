#include "operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>

namespace lancet::comm {

std::string_view name(Operation operation) {
  constexpr std::string_view names[] = {"barrier", "broadcast", "send_receive", "all_reduce_sum", "split"};
  static_assert(std::size(names) == operation_count);
  return names[static_cast<std::size_t>(operation)];
}

std::string list_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string describe_rank(int place, const std::vector<int>& ranks, std::size_t world_size) {
  const int rank = ranks[static_cast<std::size_t>(place)];
  if (ranks.size() == world_size) return fmt::format("rank {} of {}", rank, ranks.size());
  return fmt::format("rank {} of {}", rank, list_ranks(ranks));
}

Status check_peers(std::span<const Segment> segments, std::string_view what, int rank, int size) {
  for (const Segment& s : segments)
    if (s.peer < 0 || s.peer >= size)
      return internal_error(fmt::format("send_receive on rank {}: a {} segment names rank {}, expected 0 to {}", rank,
                                        what, s.peer, size - 1));
  return {};
}

Status check_members(std::span<const int> members, int rank, int size) {
  const bool ascending = std::ranges::adjacent_find(members, std::greater_equal<>()) == members.end();
  const bool ranks = !members.empty() && members.front() >= 0 && members.back() < size;
  if (ascending && ranks && std::ranges::binary_search(members, rank)) return {};
  return internal_error(fmt::format("split on rank {}: expected ascending ranks of 0 to {} with {}, found {}", rank,
                                    size - 1, rank, list_ranks({members.begin(), members.end()})));
}

// A group that holds a rank must be that rank's own group: so no rank is in two groups, and all members agree. Each
// rank's group is compared with that of its first member only. If all of these are equal, ranks of one first member
// have one group, and a group that holds ranks of another first member is found by the first members: so the time is
// that of reading all groups, ranks x members, and not that times the members.
Status check_groups(const std::vector<std::vector<int>>& members_of) {
  auto differ = [&](std::size_t rank, int member) {
    return internal_error(fmt::format("split: expected equal or disjoint groups, found {} on rank {} and {} on rank {}",
                                      list_ranks(members_of[rank]), rank,
                                      list_ranks(members_of[static_cast<std::size_t>(member)]), member));
  };
  for (std::size_t rank = 0; rank < members_of.size(); ++rank) {
    const std::vector<int>& members = members_of[rank];
    const int first = members.front();
    for (const int member : members)
      if (members_of[static_cast<std::size_t>(member)].front() != first) return differ(rank, member);
    if (members_of[static_cast<std::size_t>(first)] != members) return differ(rank, first);
  }
  return {};
}

const Segment* next_of_peer(std::span<const Segment> segments, int peer, std::size_t& at) {
  while (at < segments.size()) {
    const Segment& s = segments[at++];
    if (s.peer == peer && s.bytes > 0) return &s;
  }
  return nullptr;
}

Status copy_to_self(std::span<const Segment> sends, std::span<const Segment> receives, int rank) {
  std::size_t next_send = 0, next_receive = 0;
  while (true) {
    const Segment* from = next_of_peer(sends, rank, next_send);
    const Segment* to = next_of_peer(receives, rank, next_receive);
    if (!from && !to) return {};
    if (!from || !to || from->bytes != to->bytes)
      return communication_error(fmt::format("send_receive: rank {} expects {} bytes from itself, it sends {}", rank,
                                             to ? to->bytes : 0, from ? from->bytes : 0));
    if (to->data != from->data) std::memmove(to->data, from->data, to->bytes);
  }
}

void sum_in_rank_order(std::span<const float* const> parts, float* out, std::size_t count) {
  // Sums of a block stay in L1, so that `out` may be any of the parts and each part is read once.
  constexpr std::size_t block = 1024;
  alignas(64) float sum[block];
  for (std::size_t start = 0; start < count; start += block) {
    const std::size_t n = std::min(block, count - start);
    std::memcpy(sum, parts[0] + start, n * sizeof(float));
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const float* part = parts[p] + start;
      for (std::size_t i = 0; i < n; ++i) sum[i] += part[i];
    }
    std::memcpy(out + start, sum, n * sizeof(float));
  }
}

}  // namespace lancet::comm
