// Data dependencies between instructions, and happens-before under a set of waits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

// Per instruction, ascending and without repeats, the earlier instructions that must end before it starts: it reads
// bytes that they write, or overwrites bytes that they read or write. Tensors that share memory are resolved through
// `storage`. In the program of a pipeline stage, what meets other stages also keeps its order, and a receive follows
// the sends of the passes before its own.
std::vector<std::vector<InstructionId>> dependencies(const Program& program);

// A vector clock per instruction: how many instructions of each stream have ended for certain before it starts.
// clock(i)[stream(j)] > position(j)  <=>  j happens before i.
class HappensBefore {
 public:
  using Lists = std::vector<std::vector<InstructionId>>;
  // needed: per instruction, those that it has to wait for, all earlier in program order.
  HappensBefore(const Program& program, const Lists& needed);
  bool ordered(InstructionId before, InstructionId after) const {
    return clocks_[after.index()][stream_[before.index()]] > position_[before.index()];
  }
  using Clock = std::array<std::int32_t, stream_count>;
  const Clock& clock(InstructionId id) const { return clocks_[id.index()]; }
  std::int32_t position(InstructionId id) const { return position_[id.index()]; }
  std::size_t stream(InstructionId id) const { return stream_[id.index()]; }
  // The fewest waits that order each instruction after those in `needed` (ascending): the needed ones that stream order
  // and the waits already chosen do not imply.
  const Lists& waits() const { return waits_; }

 private:
  std::vector<Clock> clocks_;
  std::vector<std::int32_t> position_;
  std::vector<std::uint8_t> stream_;
  Lists waits_;
};

// A time within a run in which memory is in use, by stream: accesses begin when `born` many instructions have ended for
// certain, and `dead` many have to end until all accesses have.
struct Life {
  HappensBefore::Clock born{}, dead{};
  void end_never();
};
// From the first of these accesses to the last one. crosses: the memory crosses the border between steps and is in use
// twice: from the start of a run until the step before has used it, and from its maker in this step to the end.
std::vector<Life> lives_of(const Program& program, const HappensBefore& order,
                           const std::vector<InstructionId>& accesses, bool crosses);
// True if none of the lives of one overlaps one of the other.
bool are_apart(const std::vector<Life>& a, const std::vector<Life>& b);

// Per instruction, true for the all-reduces of gradients: of tensors that the backward pass made. Not those with other
// pipeline stages, which would have to be cut alike.
std::vector<bool> gradient_all_reduces(const Program& program);

// Per tensor that owns memory, the instructions that make, read or update it or a tensor stored in it, ascending.
std::vector<std::vector<InstructionId>> accesses(const Program& program);

// By tensor: the instruction that makes it; the number of instructions if none does.
std::vector<std::size_t> makers_of(const Program& program);

// The border between two steps, which what closes a step may cross: a Program can list instructions of the step before,
// which its runs leave to the next run. They have the number -1 of a micro batch, as have inputs that they read:
//     input @schedule@-1 : f32[4]
//     carried %70 : f32[512,256]                                               the value that the run before has made
//     %71 : f32[512,256] in %70 = all_reduce(%70)  # reduce sync bucket.3@-1
//     sgd(&@w, %71, @schedule@-1)  # compute update w@-1                       before the first reader of @w
//     ...
//     %70 : f32[512,256] = linear_dw(%60, %61)  # compute dw w                 for the next run
//
// A run n of such a Program executes what step n - 1 has left and step n without what it leaves itself. Instructions of
// the step before that use the memory of others come before them in the list. A run may leave either group out
// (runtime::Executor::Run): the first run of all has no step before it, and where the weights are needed, a run of
// these instructions alone completes the step.
inline bool of_step_before(const Instruction& at) { return at.micro_batch == step_before; }

// True if the program lists instructions of the step before.
bool crosses_steps(const Program& program);

// One step from its first to its last instruction: those of this step, then those that the next run would execute.
std::vector<InstructionId> in_step_order(const Program& program);

// By tensor, true if it owns memory of the arena whose contents last from one run to the next one: instructions of this
// step and of the step before use it.
std::vector<bool> crossing_memory(const Program& program);

// The values of this step that lines of the step before name, ascending: they are declared before all instructions.
std::vector<TensorId> carried_values(const Program& program);

// Success if the instructions of the step before can run beside those of this step: they close a step, each comes
// before the others that use its memory, and each reads the inputs of its own step. The program has passed all other
// checks of verify(). Errors (ExitCode::internal) name the instruction.
Status verify_border(const Program& program);

}  // namespace lancet::ir
