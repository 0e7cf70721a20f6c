// Long columns made short enough to draw.
#pragma once
#include <cstdint>
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

// The last step of each `width` neighbours.
std::vector<std::int64_t> thin(std::span<const std::int64_t> steps, std::size_t width);

}  // namespace lancet::report
