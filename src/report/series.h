// Shortens long columns to what a chart can show.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

namespace lancet::report {

inline constexpr std::size_t most_points = 1000;

// The number of neighbouring records that share a point of a chart.
inline std::size_t records_a_point(std::size_t records) { return (records + most_points - 1) / most_points; }

// The mean, the least and the most of each `width` neighbours, over those that are finite. NaN, which is a gap in a
// line, if none of them is finite; with `steady`, if any of them is not.
struct Points {
  std::vector<double> mean, low, high;
};
Points thin(std::span<const double> values, std::size_t width, bool steady = false);

// Returns the last of each `width` neighbours.
template <class T>
std::vector<T> last_of_each(const std::vector<T>& values, std::size_t width) {
  std::vector<T> last;
  for (std::size_t at = 0; at < values.size(); at += width)
    last.push_back(values[std::min(at + width, values.size()) - 1]);
  return last;
}

}  // namespace lancet::report
