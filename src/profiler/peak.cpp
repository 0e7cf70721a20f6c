#include "lancet/profiler/profiler.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/matmul.h"
#include "lancet/backend/cpu/parallel.h"
#include "replay.h"

namespace lancet::profiler {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of the shortest of the runs that start within `budget` seconds.
template <class F>
double best_seconds(double budget, F run) {
  run();  // warm
  double best = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < budget);
  return best;
}

}  // namespace

double measure_product_peak(DType dtype, int threads) {
  namespace cpu = backend::cpu;
  cpu::set_threads(threads);
  constexpr std::int64_t n = 1024;
  const auto matmul =
      cpu::make_matmul({.m = n, .n = n, .k = n, .trans_b = true, .a = dtype, .b = dtype, .c = dtype, .bias = {}});
  const auto bytes = static_cast<std::size_t>(n * n * size_of(dtype));
  const auto a = cpu::Buffer::zeroed(bytes), b = cpu::Buffer::zeroed(bytes), c = cpu::Buffer::zeroed(bytes);
  const double seconds = best_seconds(0.2, [&] { matmul->run(a.data(), b.data(), nullptr, c.data()); });
  return 2.0 * n * n * n / seconds;
}

double measure_memory_bandwidth(int threads) {
  namespace cpu = backend::cpu;
  cpu::set_threads(threads);
  constexpr std::int64_t n = 16 << 20;  // floats per array: 64 MiB
  const auto a = cpu::Buffer::zeroed(n * 4), b = cpu::Buffer::zeroed(n * 4);
  const double seconds = best_seconds(0.2, [&] {
    cpu::parallel_for(n, 1024, [&](std::int64_t begin, std::int64_t end) {
      float* x = a.as<float>();
      const float* y = b.as<float>();
      for (std::int64_t i = begin; i < end; ++i) x[i] += y[i];
    });
  });
  return 12.0 * n / seconds;
}

// The ceilings of a device, by its own clock. Each is the best of several runs, since noise only slows a run down.

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
