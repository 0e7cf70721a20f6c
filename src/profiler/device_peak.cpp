// The ceilings of a device, by its own clock. Each is the best of several runs, since noise only slows a run down.
#include <algorithm>
#include <limits>

#include "lancet/profiler/peak.h"
#include "product_loop.h"
#include "replay_plan.h"

namespace lancet::profiler {

// Eight products by the kernel that training steps use, six times.
Result<double> measure_product_peak(runtime::Accelerator& accelerator, DType dtype, std::int64_t size) {
  ProductLoop loop(accelerator);
  LANCET_TRY(loop.bind(dtype, size, 8));
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();  // nanoseconds
  for (int run = 0; run < 6; ++run) {
    LANCET_TRY(loop.run());
    for (const runtime::Span& span : loop.spans())
      shortest = std::clamp<std::int64_t>(span.end - span.start, 1, shortest);
  }
  const auto side = double(size);
  return 2 * side * side * side / (double(shortest) * 1e-9);
}

Result<double> measure_memory_bandwidth(backend::Device& device, std::int64_t bytes) {
  LANCET_TRY(device.bind_thread());
  const std::int64_t floats = std::min(bytes, device.free_bytes() / 4) / 4;
  const auto copied = static_cast<std::size_t>(4 * floats);
  const auto memory = make_device_replay_memory(device);
  LANCET_ASSIGN(std::byte* const from, memory->allocate(copied));
  LANCET_ASSIGN(std::byte* const to, memory->allocate(copied));
  LANCET_TRY(memory->fill_normals({from, {DType::f32, {floats}}}, 1, false));
  LANCET_ASSIGN(const auto stream, device.make_stream(false));
  LANCET_ASSIGN(const auto start, device.make_event());
  LANCET_ASSIGN(const auto end, device.make_event());
  double shortest = std::numeric_limits<double>::max();  // milliseconds
  for (int run = 0; run < 10; ++run) {
    LANCET_TRY(stream->record(*start));
    LANCET_TRY(stream->copy(to, from, copied));
    LANCET_TRY(stream->record(*end));
    LANCET_TRY(stream->synchronize());
    LANCET_ASSIGN(const double ms, device.milliseconds(*start, *end));
    shortest = std::clamp(ms, 1e-6, shortest);
  }
  return 2 * double(copied) / (shortest * 1e-3);
}

}  // namespace lancet::profiler
