// How a plan says that the tokens of an all-to-all go as messages although they could go through windows: by an
// attribute of the instruction. It is in the plan's text, so all ranks go the same way.
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
