// Who must run before whom.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "lancet/ir/program.h"

namespace lancet::ir {

// Per instruction, ascending and without repeats, the earlier instructions it depends on: it reads what they write,
// or overwrites what they read or write. Memory is followed through `storage`.
std::vector<std::vector<InstructionId>> dependencies(const Program& program);

// How many instructions of each stream have certainly ended before an instruction starts (a vector clock).
// clock[i][stream(j)] > position of j in its stream  <=>  j happens before i.
class HappensBefore {
 public:
  // waits: per instruction, the instructions of other streams it waits for, all earlier in program order.
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

// The fewest waits that order each instruction behind those it needs (per instruction, earlier ones, ascending): of the
// needed ones, those that stream order and the waits taken before do not imply.
std::vector<std::vector<InstructionId>> minimal_waits(const Program& program,
                                                      const std::vector<std::vector<InstructionId>>& needed);

// The accesses to a tensor's memory: all instructions that make, read or update it or what lives in it, ascending.
std::vector<std::vector<InstructionId>> accesses(const Program& program);

}  // namespace lancet::ir
