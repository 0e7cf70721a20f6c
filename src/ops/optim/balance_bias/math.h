// One step of a bias that balances the load.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"

namespace lancet::ops {

// total: the sum of the counts. Counts are integers, so that the comparison with the mean is exact.
LANCET_HD float balanced(float bias, float count, double total, std::int64_t experts, float rate) {
  const double scaled = double(count) * double(experts);
  return scaled < total ? bias + rate : (scaled > total ? bias - rate : bias);
}

}  // namespace lancet::ops
