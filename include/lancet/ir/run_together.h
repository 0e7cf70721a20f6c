// Executes the programs of several ranks, or of stages that stand for their ranks, together and without their kernels.
#pragma once
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

struct Participant {
  const Program& program;
  // Per instruction, those that have to end before; empty: none has to.
  std::span<const std::vector<InstructionId>> needed;
};

// An instruction of a participant.
struct InstructionOf {
  int participant;
  std::size_t instruction;
};

// Who is in an instruction together.
class Meetings {
 public:
  virtual ~Meetings() = default;
  // The others that have to be in it, each with its stream.
  virtual Result<std::vector<std::pair<int, Stream>>> others(const InstructionOf& mine) = 0;
  // What one of them is at on that stream. False: it is another one, which comes first there.
  virtual Result<bool> meet(const InstructionOf& mine, const InstructionOf& theirs) = 0;
  // All of them are in it, and it ends: mine, then the others'.
  virtual void end(std::span<const InstructionOf> together) = 0;
};

// Each stream runs its instructions in order, each once those that it needs have ended and all whom it meets are in it.
// Returns what the streams that wait for ever are at; nothing if all instructions have ended. Errors: those of
// `meetings`.
Result<std::vector<InstructionOf>> run_together(std::span<const Participant> participants, Meetings& meetings);

}  // namespace lancet::ir
