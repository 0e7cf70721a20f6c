// Any text as a declared machine gives costs that are numbers, or an error of one line.
#include "fuzz/fuzz.h"
#include "lancet/cost/hardware.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::AllocationLimit limit(size, 256);
  const auto hardware = cost::parse_hardware({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!test::is_read(hardware, ExitCode::config)) return 0;
  for (const int ranks : {1, 2, 64}) {
    const cost::Layout layout{ranks, hardware->nodes(ranks)};
    for (const double bytes : {0.0, 1e3, 1e9})
      if (!std::isfinite(cost::all_to_all_ms(*hardware, layout, bytes)) ||
          !std::isfinite(cost::all_reduce_ms(*hardware, layout, bytes)))
        abort();
  }
  return 0;
}
