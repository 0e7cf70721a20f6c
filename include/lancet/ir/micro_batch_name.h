// Names that say which micro batch of a step something is of: "tokens@2" is of the third, as the first one is 0 and
// adds nothing to a name. "schedule@-1" is of the step before (dependencies.h).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace lancet::ir {

// The number of what belongs to the end of the step before.
inline constexpr std::int32_t step_before = -1;

// "tokens", 2 -> "tokens@2"
std::string of_micro_batch(std::string_view name, std::int32_t micro_batch);

// The same read back: "tokens@2" -> {"tokens", 2}. A text that does not end in @ and -1 or a number from 1
// on is all name.
struct OfMicroBatch {
  std::string_view name;
  std::int32_t micro_batch = 0;
};
OfMicroBatch parse_micro_batch(std::string_view text);

}  // namespace lancet::ir
