// Measures peak FLOP/s and memory bandwidth, the denominators of MFU and of `lancet bench ops`.
#pragma once
#include "lancet/base/dtype.h"
#include "lancet/base/result.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::profiler {

// FLOP/s of a large product of cache-friendly shape on `threads` threads: the best of the repeats within about 0.2 s,
// since noise only slows a product down.
double measure_product_peak(DType dtype, int threads);

// FLOP/s of an accelerator on products of size^3. Errors: no kernel or no memory for it.
Result<double> measure_product_peak(runtime::Accelerator& accelerator, DType dtype, std::int64_t size = 8192);

// Bytes per second, read and written, of a sum over arrays far larger than the caches.
double measure_memory_bandwidth(int threads);

// The same of a device: a copy of this many bytes, fewer if less than four times as many are free, from its memory to
// its memory. Errors: the device's.
Result<double> measure_memory_bandwidth(backend::Device& device, std::int64_t bytes);

}  // namespace lancet::profiler
