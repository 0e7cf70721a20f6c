// Which instructions may run beside which all-to-alls (Lancet, section 4.1).
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// Reachability between every instruction and a few chosen ones, in bitsets: one bit an instruction and all-to-all, made
// in one pass over the dependencies each way.
class Labels {
 public:
  // all_to_alls: in program order. dependencies: ir::dependencies of the Program.
  Labels(const Dependencies& dependencies, const std::vector<ir::InstructionId>& all_to_alls);
  // No path joins the instruction and all-to-all number a, which it is not.
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
  Bits reached_;  // by which all-to-alls, itself included
  Bits reaches_;
};

}  // namespace lancet::schedule
