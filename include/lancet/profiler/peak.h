// What the device gives at best: the yardsticks of MFU and of `lancet bench ops`.
#pragma once
#include "lancet/base/dtype.h"
#include "lancet/base/result.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::profiler {

// Flops per second of a large product in cache-friendly shape with this many threads: the best of some 0.2 s of
// repeats, since noise only slows it down.
double measure_product_peak(DType dtype, int threads);

// The same of an accelerator, on products of 8192^3. Errors: no kernel or no memory for it.
Result<double> measure_product_peak(runtime::Accelerator& accelerator, DType dtype);

// Bytes per second of a sum over arrays far larger than the caches, read and written bytes counted.
double measure_memory_bandwidth(int threads);

}  // namespace lancet::profiler
