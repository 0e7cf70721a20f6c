// The Plan: a Program that also has, for every instruction, the instructions of other streams that it waits for, the
// arena offsets of its results, and its predicted start and end. The planner hands it to the runtime as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/mesh.h"
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
// (program.h); a wait for an instruction that is not earlier; a dependency without a happens-before path; two tensors
// that share bytes although no such path orders all accesses to one before those to the other. Paths consist of stream
// order and waits; program order does not count across streams.
Status verify(const Plan& plan);

// Checks that the plans of all ranks can run together: no rank waits for ever for another one, and ranks that meet in a
// collective call the same one.

// plans[r] is that of rank r of the mesh; ranks may share a plan. A stream runs its instructions in order, each after
// the instructions that it waits for. An instruction of a communication stream is a collective of the ranks that its
// attribute `axes` names, of all ranks without it: it ends once all of them are in it. An instruction of a stream
// between stages is one end of a message to or from the neighbour's: it ends once both are in it. Errors
// (ExitCode::internal), in one line: ranks of a group that meet in different instructions (op, or bytes of a result);
// messages between stages whose ends differ in bytes, or that have no other end; ranks that wait for one another, with
// the instruction in which each of them waits.
Status verify_ranks(std::span<const Plan* const> plans, const Mesh& mesh);

// An instruction of a rank, with the number of results that the instructions of all ranks before it have; those that
// meet have the same number.
struct PlacedInstruction {
  InstructionId instruction;
  std::int64_t place = 0;
};

// By rank, an order in which each can run its plan one instruction after the other, whatever the stream: none waits for
// ever for another one. What an instruction needs, on whatever rank, has a smaller place. Errors: those of
// verify_ranks().
Result<std::vector<std::vector<PlacedInstruction>>> order_together(std::span<const Plan* const> plans,
                                                                   const Mesh& mesh);
// The same for ranks of which each runs the plan of its pipeline stage: the order of all ranks of `stage`, on whatever
// mesh. It is that of one rank a stage, since the ranks of a stage do the same at the same place.
Result<std::vector<PlacedInstruction>> order_of_stage(std::span<const Plan> stages, std::size_t stage);

// Where the plans of pipeline stages are kept.

// The file of a pipeline stage's plan beside that of the first stage: "plan.ir", 1 -> "plan.stage1.ir"; of stage 0 the
// path itself.
std::filesystem::path stage_path(const std::filesystem::path& path, std::size_t stage);

// Writes the plans of the stages after the first one beside `path`. stages: all of them; none of a plan without stages.
Status write_later_stages(const std::filesystem::path& path, std::span<const Plan> stages);

}  // namespace lancet::ir
