// Facts about a schedule for people, read off a Program and its predicted times; the same for every policy.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"

namespace lancet::schedule {

// The instructions of the compute stream that overlap a communication. Milliseconds.
struct Cover {
  ir::InstructionId instruction;
  double ms = 0;
};
struct CommunicationCover {
  ir::InstructionId communication;
  double ms = 0, covered_ms = 0;
  std::vector<Cover> under;  // in the order of the compute stream
};
// The cover of every instruction of a communication stream that takes time, in launch order. when: per instruction.
std::vector<CommunicationCover> communication_covers(const ir::Program& program, std::span<const ir::Interval> when,
                                                     ir::Stream stream);

// The label without the number of the part, which is the same for all parts of an instruction.
std::string site_of(const ir::Instruction& instruction);

// A range of the forward pass (or, with role dx, of the backward pass) whose instructions run in `parts` parts, each
// reading the results of the same part. first, last: the sites of its first and last instruction in program order.
struct SplitRange {
  ir::Role role = ir::Role::forward;
  int parts = 1;
  std::string first, last;
};
std::vector<SplitRange> split_ranges(const ir::Program& program);

}  // namespace lancet::schedule
