// What the device gives at best: the yardsticks of MFU and of `lancet bench ops`.
#pragma once
#include "lancet/base/dtype.h"

namespace lancet::runtime {

// Flops per second of a large product in cache-friendly shape with this many threads: the best of some 0.2 s of
// repeats, since noise only slows it down.
double measure_product_peak(DType dtype, int threads);

// Bytes per second of a sum over arrays far larger than the caches, read and written bytes counted.
double measure_memory_bandwidth(int threads);

}  // namespace lancet::runtime
