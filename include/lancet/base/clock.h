// Elapsed seconds by the steady clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace lancet {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The median, the statistic of every measurement: noise only adds time, and one outlier must not count.

// `values` is not empty. For an even number of values the median is the mean of the middle two.
template <class T>
double median(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? double(values[half]) : (double(values[half - 1]) + double(values[half])) / 2;
}

}  // namespace lancet
