// The Plan: a Program with, for every instruction, its stream, the instructions of other streams that it waits for, where
// its results lie in the arena, and when it is predicted to run. Planner and runtime meet here, as text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

// Milliseconds from the start of the step. Both 0 where nothing was predicted.
struct Interval {
  double start = 0, end = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

struct Plan {
  // What the plan was made for, and what it comes to: planner/planner.h (make_plan).
  Attributes header;
  Program program;                                // the order of the instructions of a stream is their order here
  std::vector<std::vector<InstructionId>> waits;  // per instruction: signals of other streams, before it starts
  std::vector<Interval> predicted;                // per instruction
  std::vector<std::int64_t> offsets;              // per tensor: bytes from the arena's start; -1: not in the arena
  std::int64_t arena_bytes = 0;
};

std::string print(const Plan& plan);
Result<Plan> parse_plan(std::string_view text);

// Empty for a sound plan, else what is wrong and at which instruction: waits that point forward in the same stream or
// close a cycle; dependencies without a happens-before path; two tensors in the same bytes whose accesses are not
// ordered by one (stream order or a wait; program order is not enough with several streams).
Status verify(const Plan& plan);

}  // namespace lancet::ir
