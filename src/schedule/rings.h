// The all-gathers and reduce-scatters beside products that can be rings of windows (schedule/collective_matmul.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/ops/op.h"

namespace lancet::schedule {

struct Ring {
  std::size_t collective = 0;  // the instruction that the ring takes the place of
  bool gathers = false;        // an all-gather; else a reduce-scatter
  int axis = 0;                // of the tensor's windows
  std::int64_t shards = 1;     // the ranks of the group, and the windows of the tensor
  // Of an all-gather: those that read the gathered tensor and make a window of their result of each of its windows. Of
  // a reduce-scatter: the one that makes the summands.
  std::vector<std::size_t> products = {};
  // Of an all-gather: those that sum over the windows of the gathered tensor, but for gradients of weights of which the
  // ranks of the group hold copies.
  std::vector<std::size_t> weight_gradients = {};
  std::string kind = {};  // rings of one kind cost the same

  // The windows that it shares with rings of the same key, so that one's results are another's operands.
  std::string key(const ir::Program& program) const;
};

// The rings of up to 32 windows that a program can have (as in XLA), in program order. The dimension is in one block,
// and the shards are equal: ir::shard_shape refuses others.
std::vector<Ring> find_rings(const ir::Program& program);

// The row by which each window, along `axis`, of an instruction's operands makes a window of its results; null if it
// has none. Local instructions only.
const ops::PartitionRow* window_row(const ir::Program& program, const ir::Instruction& at, int axis,
                                    std::int64_t shards);
// The row by which its results are sums over the windows of its operands.
const ops::PartitionRow* sum_row(const ir::Program& program, const ir::Instruction& at, int axis, std::int64_t shards);

// XLA's cost rule of a windowed einsum, on the times of a step's ring.

// Milliseconds of a ring, and of what it takes the place of.
struct RingTimes {
  double compute = 0, messages = 0;  // in windows; compute: with copies, and with what messages take of it
  double whole_compute = 0, whole_message = 0;

  // True if the ring is shorter than product and collective one after the other. One window's computation is before or
  // after all messages.
  bool pays(std::int64_t windows) const {
    return std::max(compute, messages + compute / double(windows)) < whole_compute + whole_message;
  }
};

// Replaces collectives beside products by rings of windows.

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
