// The median, the statistic of every measurement: noise only adds time, and one outlier must not count.
#pragma once
#include <algorithm>
#include <vector>

namespace lancet {

// `values` is not empty. For an even number of values the median is the mean of the middle two.
template <class T>
double median(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? double(values[half]) : (double(values[half - 1]) + double(values[half])) / 2;
}

}  // namespace lancet
