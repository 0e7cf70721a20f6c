// Data dependencies between instructions, and happens-before under a set of waits.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "lancet/ir/program.h"

namespace lancet::ir {

// Per instruction, ascending and without repeats, the earlier instructions that must end before it starts: it reads
// bytes that they write, or overwrites bytes that they read or write. Tensors that share memory are resolved through
// `storage`.
std::vector<std::vector<InstructionId>> dependencies(const Program& program);

// A vector clock per instruction: how many instructions of each stream have ended for certain before it starts.
// clock(i)[stream(j)] > position(j)  <=>  j happens before i.
class HappensBefore {
 public:
  // waits: per instruction, the instructions of other streams that it waits for, all earlier in program order.
  HappensBefore(const Program& program, const std::vector<std::vector<InstructionId>>& waits);
  bool ordered(InstructionId before, InstructionId after) const {
    return clocks_[after.index()][stream_[before.index()]] > position_[before.index()];
  }
  using Clock = std::array<std::int32_t, stream_count>;
  const Clock& clock(InstructionId id) const { return clocks_[id.index()]; }
  std::int32_t position(InstructionId id) const { return position_[id.index()]; }
  std::size_t stream(InstructionId id) const { return stream_[id.index()]; }

 private:
  std::vector<Clock> clocks_;
  std::vector<std::int32_t> position_;
  std::vector<std::uint8_t> stream_;
};

// The fewest waits that order each instruction after those in `needed` (per instruction, earlier ones, ascending): the
// needed ones that stream order and the waits already chosen do not imply.
std::vector<std::vector<InstructionId>> minimal_waits(const Program& program,
                                                      const std::vector<std::vector<InstructionId>>& needed);

// Per instruction, true for the all-reduces of gradients: of tensors that the backward pass made.
std::vector<bool> gradient_all_reduces(const Program& program);

// Per tensor that owns memory, the instructions that make, read or update it or a tensor stored in it, ascending.
std::vector<std::vector<InstructionId>> accesses(const Program& program);

}  // namespace lancet::ir
