#include "series.h"

#include <cmath>
#include <limits>

namespace lancet::report {

Points thin(std::span<const double> values, std::size_t width, bool steady) {
  constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
  Points points;
  for (std::size_t at = 0; at < values.size(); at += width) {
    double sum = 0, low = nothing, high = nothing;
    std::size_t count = 0;
    const auto neighbours = values.subspan(at, std::min(width, values.size() - at));
    for (const double value : neighbours) {
      if (!std::isfinite(value)) continue;
      sum += value;
      low = std::fmin(low, value);  // the number, where the other is NaN
      high = std::fmax(high, value);
      ++count;
    }
    const bool gap = count == 0 || (steady && count < neighbours.size());
    points.mean.push_back(gap ? nothing : sum / double(count));
    points.low.push_back(gap ? nothing : low);
    points.high.push_back(gap ? nothing : high);
  }
  return points;
}

}  // namespace lancet::report
