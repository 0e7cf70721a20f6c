// Steps of the rings that take the place of collectives (permute_shards in src/ops/collective): an instruction's
// attribute of is the collective's op, shift is how many places on the rank is from which a tensor comes.
#pragma once
#include <string_view>

#include "lancet/ir/program.h"

namespace lancet::ops {

inline constexpr std::string_view ring_of = "of", ring_shift = "shift";

inline bool is_ring_step(const ir::Instruction& at) { return at.attributes.has(ring_shift); }

// The op of the collective that the instruction is, or of whose ring it is a step.
inline const std::string& collective_of(const ir::Instruction& at) {
  return is_ring_step(at) ? at.attributes.text(ring_of) : at.op;
}

}  // namespace lancet::ops
