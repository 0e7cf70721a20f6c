// The only control flow of a Plan: an instruction with a body, which it runs several times.
//
//     repeat(count i32[1], what the body reads...) -> round i32[1], scratch i32[n], what the body updates...
//
// It sets `round` to 1 and runs the body, and so on up to count - 1: what stands outside of the body was round 0. So it
// runs nothing where count is 1, and what it updates then keeps its value: every result but the first two is in the
// memory of an operand, and the body works on it in place. All other tensors of the body are slices of `scratch`, and
// exist while it runs. The host reads the count when the instruction starts; it is the same on all ranks that the
// collectives of the body go over.
//
// The body runs in order on the instruction's stream. To all that looks at streams, memory or collectives of ranks, a
// repeat is one instruction with operands and results as any other.
#pragma once
#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

inline constexpr std::size_t repeat_count = 0;                      // operand
inline constexpr std::size_t repeat_round = 0, repeat_scratch = 1;  // results

inline bool is_repeat(const Instruction& instruction) { return !instruction.body.empty(); }

// Success if the instruction has no body, or one that is closed: it reads operands of the repeat, the round and what it
// has made itself and not overwritten; it makes slices of the scratch, and the repeat's other results, each of them, in
// the memory of its operands; no instruction in it has a body. The error says which instruction of the body is wrong.
Status verify_body(const Program& program, const Instruction& instruction);

// Calls f(instruction, stream) for each instruction that has a kernel, with the stream that it runs on: the body of a
// repeat in its place. f returns a Status; the first error ends the loop.
template <class F>
Status for_each_kernel(const Program& program, F f) {
  for (const Instruction& instruction : program.instructions) {
    if (!is_repeat(instruction)) LANCET_TRY(f(instruction, instruction.stream));
    for (const Instruction& part : instruction.body) LANCET_TRY(f(part, instruction.stream));
  }
  return {};
}

}  // namespace lancet::ir
