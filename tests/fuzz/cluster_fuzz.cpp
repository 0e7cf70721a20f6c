// Any text as a cluster gives paths that take finite times, or an error of one line.
#include "fuzz/fuzz.h"
#include "lancet/placement/problem.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::AllocationLimit limit(size, 256, 8 << 20);  // each of 64 devices may read a hardware file
  const auto cluster = placement::parse_cluster({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!test::is_read(cluster, ExitCode::config)) return 0;
  for (const auto* values : {&cluster->ms_per_mb, &cluster->latency_ms})
    for (const auto& row : *values)
      for (const double value : row)
        if (!std::isfinite(value) || value < 0) abort();
  return 0;
}
