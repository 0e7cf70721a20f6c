// The attribute by=counts: it makes an all-to-all send its tokens as messages, even if windows (direct writes into the
// peers' memory) are available. It is part of the plan's text, so that all ranks choose the same transport.
#pragma once
#include <string>

#include "lancet/ir/program.h"

namespace lancet::ops {

inline constexpr const char* way_attribute = "by";
inline constexpr const char* by_counts = "counts";

inline void take_counts(ir::Instruction& instruction) {
  instruction.attributes.set(way_attribute, std::string(by_counts));
}
inline bool takes_counts(const ir::Attributes& attributes) { return attributes.has(way_attribute); }

}  // namespace lancet::ops
