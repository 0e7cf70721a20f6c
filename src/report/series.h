// Long columns made short enough to draw.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

namespace lancet::report {

inline constexpr std::size_t most_points = 1000;

// Records that make a point when so many make the whole.
inline std::size_t records_a_point(std::size_t records) { return (records + most_points - 1) / most_points; }

// Of each `width` neighbours, of what is finite: the mean, the least and the most. NaN, a gap in a line, where nothing
// is; `steady`: where one of them is not.
struct Points {
  std::vector<double> mean, low, high;
};
Points thin(std::span<const double> values, std::size_t width, bool steady = false);

// The last of each `width` neighbours.
template <class T>
std::vector<T> last_of_each(const std::vector<T>& values, std::size_t width) {
  std::vector<T> last;
  for (std::size_t at = 0; at < values.size(); at += width)
    last.push_back(values[std::min(at + width, values.size()) - 1]);
  return last;
}

}  // namespace lancet::report
