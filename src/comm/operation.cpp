#include "operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace lancet::comm {

std::string_view name(Operation operation) {
  constexpr std::string_view names[] = {"barrier", "broadcast", "send_receive", "all_reduce_sum", "duplicate"};
  static_assert(std::size(names) == operation_count);
  return names[static_cast<std::size_t>(operation)];
}

std::string list_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

Status check_peers(std::span<const Segment> segments, std::string_view what, int rank, int size) {
  for (const Segment& s : segments)
    if (s.peer < 0 || s.peer >= size)
      return internal_error(fmt::format("send_receive on rank {}: a {} segment names rank {}, expected 0 to {}", rank,
                                        what, s.peer, size - 1));
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

}  // namespace lancet::comm
