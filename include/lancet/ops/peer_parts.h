// How the ranks of an all-to-all are divided among its parts, by which of them send to each other.
#pragma once

#include <cstdint>
#include <string_view>

#include "lancet/base/hd.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

// The W ranks of a group, on hosts of `host` ranks each. Seen from one rank, the others have an order: itself, the
// rest of its host, then host by host; all begin behind the rank's own place, so that at each position every rank sends
// to one other and receives from one. The order is cut into parts in one of two ways:
//   own_first == false: a host a part, W / host in all (FasterMoE's groups; part 0 stays within the group)
//   own_first == true: the rank itself, for which no message is sent; the rest of its host, if that has more ranks; and
//       the other hosts' ranks in parts of equal size, up to one rank (Comet, section 3.1.2, and its public code's
//       order of sources: own rank, own node, other nodes)
struct PeerParts {
  std::int64_t ranks = 1, parts = 1, host = 1;
  bool own_first = false;

  // The part in which `from` sends to `to`.
  LANCET_HD std::int64_t part_of(std::int64_t from, std::int64_t to) const {
    const std::int64_t hosts = ranks / host, host_distance = (to / host - from / host + hosts) % hosts;
    if (!own_first) return host_distance;
    const std::int64_t position = host_distance * host + (to % host - from % host + host) % host;
    if (position < host) return position == 0 ? 0 : 1;
    return near() + ((position - host + 1) * far() - 1) / (ranks - host);
  }
  // The ranks that a rank sends to in a part, itself included.
  LANCET_HD std::int64_t size(std::int64_t part) const {
    if (!own_first) return host;
    if (part < near()) return part == 0 ? 1 : host - 1;
    return (ranks - host) * (part - near() + 1) / far() - (ranks - host) * (part - near()) / far();
  }
  // The parts within a rank's host.
  LANCET_HD std::int64_t near() const { return host > 1 ? 2 : 1; }
  // True if there can be such parts: none of them is empty.
  LANCET_HD bool fit() const {
    if (ranks < 1 || parts < 1 || host < 1 || ranks % host != 0) return false;
    return own_first ? parts >= near() + (ranks > host) && far() <= ranks - host : ranks / host == parts;
  }

 private:
  LANCET_HD std::int64_t far() const { return parts - near(); }
};

// The parts that an instruction's attributes describe: ranks and parts, and, if the own rank comes first, host.
inline PeerParts peer_parts(const ir::Attributes& attributes) {
  const std::int64_t ranks = attributes.integer("ranks"), parts = attributes.integer("parts");
  if (attributes.has("host")) return {ranks, parts, attributes.integer("host"), true};
  return {ranks, parts, parts > 0 ? ranks / parts : 0, false};
}

// Steps of the rings that take the place of collectives (permute_shards in src/ops/comm/collective): an instruction's
// attribute of is the collective's op, shift is how many places on the rank is from which a tensor comes.
inline constexpr std::string_view ring_of = "of", ring_shift = "shift";

inline bool is_ring_step(const ir::Instruction& at) { return at.attributes.has(ring_shift); }

// The op of the collective that the instruction is, or of whose ring it is a step.
inline const std::string& collective_of(const ir::Instruction& at) {
  return is_ring_step(at) ? at.attributes.text(ring_of) : at.op;
}

}  // namespace lancet::ops
