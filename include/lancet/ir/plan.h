// The Plan: a Program that also has, for every instruction, the instructions of other streams that it waits for, the
// arena offsets of its results, and its predicted start and end. The planner hands it to the runtime as text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

// Milliseconds from the start of the step. Both are 0 without a prediction.
struct Interval {
  double start = 0, end = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

struct Plan {
  // The inputs that the plan was made for and its predicted totals; planner/planner.h (make_plan) lists them.
  Attributes header;
  Program program;                                // a stream runs its instructions in this order
  std::vector<std::vector<InstructionId>> waits;  // per instruction: those of other streams that must end first
  std::vector<Interval> predicted;                // per instruction
  std::vector<std::int64_t> offsets;              // per tensor: bytes from the arena's start; -1: not in the arena
  std::int64_t arena_bytes = 0;
};

std::string print(const Plan& plan);
Result<Plan> parse_plan(std::string_view text);

// Success for a sound plan. The errors (ExitCode::internal) name the instruction or tensor: an unsound program
// (verify.h); a wait for an instruction that is not earlier; a dependency without a happens-before path; two tensors
// that share bytes although no such path orders all accesses to one before those to the other. Paths consist of stream
// order and waits; program order does not count across streams.
Status verify(const Plan& plan);

}  // namespace lancet::ir
