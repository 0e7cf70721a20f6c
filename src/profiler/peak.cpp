#include "lancet/profiler/peak.h"

#include <algorithm>
#include <chrono>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/matmul.h"
#include "lancet/backend/cpu/parallel.h"

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

}  // namespace lancet::profiler
