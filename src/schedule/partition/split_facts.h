// What rewrite asks of the program that it splits.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/schedule/partition/cut.h"

namespace lancet::schedule {

bool is_all_to_all(const ir::Instruction& at);

// By tensor: true if something reads it as a whole, in another number of parts than it is made in, or in another
// pipeline: its parts are slices of one memory, or must be joined. The parts of all other tensors have lifetimes of
// their own.
std::vector<bool> whole_users(const ir::Program& program, const Split& split);

// The experts and slots of the tokens that fill the slots: operands of the layer's dispatch. per_token:
// per_token_tensors(program).
std::vector<ir::TensorId> choices_of(const ir::Program& program, const std::vector<bool>& per_token,
                                     ir::TensorId filled);

// The instruction that reads or makes filled slots or rows and has an attribute: the number of ranks, or of slots of an
// expert.
const ir::Instruction& toucher_of(const ir::Program& program, ir::TensorId filled, std::string_view attribute);

// The dynamic programme over partition ranges (Lancet, section 5.1).

// The groups [begin, end), each instruction in `parts` parts.
struct Range {
  int begin = 0, end = 0, parts = 1;
  friend bool operator==(const Range&, const Range&) = default;
};

struct Ranges {
  std::vector<Range> ranges;  // all groups, in order
  double ms = 0;
};

// Milliseconds of the groups [begin, end) in `parts` parts; infinity if they cannot be split so.
using RangeCost = std::function<double(int begin, int end, int parts)>;

// T(n) = min over i, k of T(i) + cost(i, n, k), with ranges of at most max_range groups and k of `parts` (ascending, 1
// among them). Ties go to the longest range and the fewest parts.
Ranges choose_ranges(int groups, int max_range, std::span<const int> parts, const RangeCost& cost);

}  // namespace lancet::schedule
