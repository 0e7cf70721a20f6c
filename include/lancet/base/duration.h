// Formats a duration for people.
#pragma once
#include <string>

namespace lancet {

std::string duration(double seconds);  // "1h 02m", "3m 20s", "12s"

}  // namespace lancet
