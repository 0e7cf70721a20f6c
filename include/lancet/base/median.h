// The median: the statistic of every measurement here, since noise only adds time and one outlier must not count.
#pragma once
#include <algorithm>
#include <vector>

namespace lancet {

// Of at least one value; of an even number, the mean of the two in the middle.
template <class T>
double median(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? double(values[half]) : (double(values[half - 1]) + double(values[half])) / 2;
}

}  // namespace lancet
