// Runs eight products of 8192^3 with the kernel that training steps use, and takes the fastest product of six runs, by
// the device's clock.
#include <algorithm>
#include <limits>

#include "lancet/profiler/peak.h"
#include "product_loop.h"

namespace lancet::profiler {

Result<double> measure_product_peak(runtime::Accelerator& accelerator, DType dtype) {
  constexpr std::int64_t size = 8192;
  ProductLoop loop(accelerator);
  LANCET_TRY(loop.bind(dtype, size, 8));
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();  // nanoseconds
  for (int run = 0; run < 6; ++run) {
    LANCET_TRY(loop.run());
    for (const runtime::Span& span : loop.spans())
      shortest = std::clamp<std::int64_t>(span.end - span.start, 1, shortest);
  }
  return 2.0 * size * size * size / (double(shortest) * 1e-9);
}

}  // namespace lancet::profiler
