// Replaces collectives beside products by rings of windows.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "rings.h"

namespace lancet::schedule {

// whole: no ring. one_way: each step brings one window, from the next rank. two_sums (reduce-scatter, an even number of
// windows): two sums take turns, each two ranks a step. both_ways (more than two windows): each step brings two
// windows, from the next rank and from the one before.
enum class RingWay : std::uint8_t { whole, one_way, two_sums, both_ways };

struct RingChoice {
  RingWay way = RingWay::whole;
  bool weight_gradients = false;  // sum over the windows; else they read the whole, bit for bit as without a ring
  friend bool operator==(const RingChoice&, const RingChoice&) = default;
};

// The choices that a ring has, `whole` first.
std::vector<RingChoice> choices_of(const Ring& ring);

struct Ringed {
  // Of an instruction that belongs to no ring, and of one on windows between the products of rings.
  static constexpr int outside = -1, between = -2;
  ir::Program program;
  std::vector<int> ring;  // per instruction: the index of its ring, or one of these
};

// choices: per ring. all_helpers: also makes joins and windows that nothing reads, to find their costs.
Ringed with_rings(const ir::Program& program, std::span<const Ring> rings, std::span<const RingChoice> choices,
                  bool all_helpers = false);

// Programs with all op keys and messages that some choice of rings may need the cost of; none if there are no rings.
std::vector<ir::Program> ring_variants(const ir::Program& program);

}  // namespace lancet::schedule
