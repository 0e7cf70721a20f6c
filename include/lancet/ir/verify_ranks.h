// Checks that the plans of all ranks can run together: no rank waits for ever for another one, and ranks that meet in a
// collective call the same one.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/plan.h"

namespace lancet::ir {

// plans[r] is that of rank r of the mesh; ranks may share a plan. A stream runs its instructions in order, each after
// the instructions that it waits for. An instruction of a communication stream is a collective of the ranks that its
// attribute `axes` names, of all ranks without it: it ends once all of them are in it. An instruction of a stream
// between stages is one end of a message to or from the neighbour's: it ends once both are in it. Errors
// (ExitCode::internal), in one line: ranks of a group that meet in different instructions (op, or bytes of a result);
// messages between stages whose ends differ in bytes, or that have no other end; ranks that wait for one another, with
// the instruction in which each of them waits.
Status verify_ranks(std::span<const Plan* const> plans, const ir::Mesh& mesh);

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
                                                                   const ir::Mesh& mesh);

}  // namespace lancet::ir
