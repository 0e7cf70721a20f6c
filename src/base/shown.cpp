#include "lancet/base/shown.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

namespace lancet {

std::string duration(double seconds) {
  const auto s = static_cast<long>(std::lround(std::max(seconds, 0.0)));
  if (s >= 3600) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

}  // namespace lancet
