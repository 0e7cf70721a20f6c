// Ceilings of a device whose events are one millisecond apart.
#include "lancet/profiler/profiler.h"

#include <catch2/catch.hpp>

#include "host_accelerator.h"

namespace lancet {

TEST_CASE("the ceilings of a device count all FLOPs of a product, and the bytes that a copy reads and writes") {
  std::atomic<std::int64_t> events = 0;
  test::HostAccelerator accelerator({.bytes = 1 << 20, .events = &events});
  CHECK(profiler::measure_product_peak(accelerator, DType::f32, 32).value() == Approx(2.0 * 32 * 32 * 32 / 1e-3));
  CHECK(profiler::measure_memory_bandwidth(accelerator.device(), 1 << 16).value() == Approx(2.0 * (1 << 16) / 1e-3));
  // a quarter of what is free
  CHECK(profiler::measure_memory_bandwidth(accelerator.device(), 1 << 30).value() == Approx(2.0 * (1 << 18) / 1e-3));
}

}  // namespace lancet
