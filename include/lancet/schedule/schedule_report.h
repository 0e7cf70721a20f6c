// What a schedule does, read off a Program and its predicted times: for people, and the same for every policy.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"

namespace lancet::schedule {

// What the compute stream does while an all-to-all is under way. Milliseconds.
struct Cover {
  ir::InstructionId instruction;
  double ms = 0;
};
struct AllToAllCover {
  ir::InstructionId exchange;  // of the expert stream
  double ms = 0, covered_ms = 0;
  std::vector<Cover> under;  // in the order of the compute stream
};
// Every instruction of the expert stream that takes time, in launch order. when: per instruction.
std::vector<AllToAllCover> all_to_all_covers(const ir::Program& program, std::span<const ir::Interval> when);

// The label without the number of the part: the same for all parts of an instruction.
std::string site_of(const ir::Instruction& instruction);

// A stretch of the forward pass (or, with role dx, of the backward pass) whose instructions run in `parts` parts, each
// on what the same part made before. first, last: their sites in program order.
struct SplitRange {
  ir::Role role = ir::Role::forward;
  int parts = 1;
  std::string first, last;
};
std::vector<SplitRange> split_ranges(const ir::Program& program);

}  // namespace lancet::schedule
