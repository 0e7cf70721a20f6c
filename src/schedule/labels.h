// Finds the instructions that may overlap an all-to-all: no path of dependencies joins the two (Lancet, section 4.1).
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

class Labels {
 public:
  // all_to_alls: in program order. dependencies: ir::dependencies of the Program.
  Labels(const Dependencies& dependencies, const std::vector<ir::InstructionId>& all_to_alls);
  // True if the instruction and all-to-all number a are independent (and distinct).
  bool overlappable(ir::InstructionId id, std::size_t a) const {
    return !bit(reached_, id, a) && !bit(reaches_, id, a);
  }

 private:
  using Bits = std::vector<std::uint64_t>;  // words_ words an instruction
  bool bit(const Bits& bits, ir::InstructionId id, std::size_t a) const {
    return bits[id.index() * words_ + a / 64] >> (a % 64) & 1;
  }
  void join(Bits& bits, std::size_t into, std::size_t from) const;
  std::size_t words_;
  Bits reached_;  // the all-to-alls that an instruction depends on, and itself
  Bits reaches_;  // the all-to-alls that depend on an instruction, and itself
};

}  // namespace lancet::schedule
