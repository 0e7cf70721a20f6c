// Reachability by bitsets: each instruction has one bit per all-to-all and direction. An all-to-all sets its own bit;
// one pass forward over the dependencies joins the bits of all earlier all-to-alls that reach an instruction, one pass
// backward those of all later all-to-alls that it reaches. Instructions are in program order, so one pass each
// suffices.
#include "labels.h"

namespace lancet::schedule {

Labels::Labels(const Dependencies& dependencies, const std::vector<ir::InstructionId>& all_to_alls)
    : words_((all_to_alls.size() + 63) / 64),
      reached_(dependencies.size() * words_),
      reaches_(dependencies.size() * words_) {
  for (std::size_t a = 0; a < all_to_alls.size(); ++a)
    for (Bits* bits : {&reached_, &reaches_})
      (*bits)[all_to_alls[a].index() * words_ + a / 64] |= std::uint64_t{1} << (a % 64);
  for (std::size_t i = 0; i < dependencies.size(); ++i)
    for (ir::InstructionId before : dependencies[i]) join(reached_, i, before.index());
  for (std::size_t i = dependencies.size(); i-- > 0;)
    for (ir::InstructionId before : dependencies[i]) join(reaches_, before.index(), i);
}

void Labels::join(Bits& bits, std::size_t into, std::size_t from) const {
  for (std::size_t word = 0; word < words_; ++word) bits[into * words_ + word] |= bits[from * words_ + word];
}

}  // namespace lancet::schedule
