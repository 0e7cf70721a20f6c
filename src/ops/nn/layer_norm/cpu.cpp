#include <cmath>

#include "math.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

// One row: its mean, then the variance around it (in one pass digits would cancel), then y. The row stays in the cache.
// beta: null of an RMS norm.
template <class Stats, class T>
Stats norm_row(std::int64_t d, const T* x, const float* gamma, const float* beta, float eps, T* y) {
  Stats row{};
  float mean = 0;
  if constexpr (Stats::centred) row.mean = mean = cpu::sum(d, [=](std::int64_t i) { return to_f32(x[i]); }) / float(d);
  const float squares = cpu::sum(d, [=](std::int64_t i) {
    const float c = to_f32(x[i]) - mean;
    return c * c;
  });
  row.rstd = 1.f / std::sqrt(squares / float(d) + eps);
  if constexpr (Stats::centred)
    cpu::map(
        d, y, [=](float v, float scale, float shift) { return layer_norm(v, row, scale, shift); }, x, gamma, beta);
  else
    cpu::map(
        d, y, [=](float v, float scale) { return rms_norm<T>(v, row, scale); }, x, gamma);
  return row;
}

template <class Stats>
Kernel bind(const KernelArgs& args) {
  const float *gamma = args.operands[1].as<float>(), *beta = Stats::centred ? args.operands[2].as<float>() : nullptr;
  Stats* stats = args.results[1].as<Stats>();
  const float eps = float(args.attributes.real("eps"));
  const std::int64_t rows = args.operands[0].shape().rows(), d = args.operands[0].shape().back();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(rows, cpu::row_grain(d), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r)
          stats[r] = norm_row<Stats>(d, x + r * d, gamma, beta, eps, y + r * d);
      });
      return {};
    };
  });
}

template <class Stats>
Kernel bind_add(const KernelArgs& args) {
  const float *gamma = args.operands[2].as<float>(), *beta = Stats::centred ? args.operands[3].as<float>() : nullptr;
  Stats* stats = args.results[2].as<Stats>();
  const float eps = float(args.attributes.real("eps"));
  const std::int64_t rows = args.operands[0].shape().rows(), d = args.operands[0].shape().back();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *x = args.operands[0].as<T>(), *delta = args.operands[1].as<T>();
    T *sum = args.results[0].as<T>(), *y = args.results[1].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(rows, cpu::row_grain(d), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          cpu::map(
              d, sum + r * d, [](float a, float b) { return a + b; }, x + r * d, delta + r * d);
          stats[r] = norm_row<Stats>(d, sum + r * d, gamma, beta, eps, y + r * d);
        }
      });
      return {};
    };
  });
}

// The row's dx, plus dsum, the direct gradient of the residual sum, if it is not null.
template <class Stats, class T>
void norm_row_dx(std::int64_t d, const T* dy, const T* x, const float* gamma, Stats row, const T* dsum, T* dx) {
  const auto [sum_g, sum_gx] = cpu::sum2(d, [=](std::int64_t i, float& g, float& gx) {
    g = to_f32(dy[i]) * gamma[i];
    gx = g * normalized(to_f32(x[i]), row);
  });
  const float mean_g = Stats::centred ? sum_g / float(d) : 0.f, mean_gx = sum_gx / float(d);
  const auto own = [=](float g, float v, float scale) { return norm_dx(g, v, row, scale, mean_g, mean_gx); };
  if (dsum)
    cpu::map(
        d, dx, [=](float g, float v, float scale, float sum) { return own(g, v, scale) + sum; }, dy, x, gamma, dsum);
  else
    cpu::map(d, dx, own, dy, x, gamma);
}

template <class Stats>
Kernel bind_dx(const KernelArgs& args) {
  const float* gamma = args.operands[2].as<float>();
  const Stats* stats = args.operands[3].as<Stats>();
  const std::int64_t rows = args.operands[0].shape().rows(), d = args.operands[0].shape().back();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    const T* dsum = args.has(4) ? args.operands[4].as<T>() : nullptr;
    T* dx = args.results[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(rows, cpu::row_grain(d), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r)
          norm_row_dx<Stats>(d, dy + r * d, x + r * d, gamma, stats[r], dsum ? dsum + r * d : nullptr, dx + r * d);
      });
      return {};
    };
  });
}

// Columns [begin, end) of the gradients, added in the order of the rows.
template <class Stats, class T>
void add_dw(std::int64_t rows, std::int64_t d, std::int64_t begin, std::int64_t end, const T* dy, const T* x,
            const Stats* stats, float* dgamma, float* dbeta) {
  for (std::int64_t r = 0; r < rows; ++r, dy += d, x += d) {
    const Stats row = stats[r];
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = to_f32(dy[i]);
      dgamma[i] += g * normalized(to_f32(x[i]), row);
      if constexpr (Stats::centred) dbeta[i] += g;
    }
  }
}

// Threads share the columns.
template <class Stats>
Kernel bind_dw(const KernelArgs& args) {
  const Stats* stats = args.operands[2].as<Stats>();
  float *dgamma = args.results[0].as<float>(), *dbeta = Stats::centred ? args.results[1].as<float>() : nullptr;
  const bool accumulate = args.has(3);
  const std::int64_t rows = args.operands[0].shape().rows(), d = args.operands[0].shape().back();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(d, cpu::block, [&](std::int64_t begin, std::int64_t end) {
        if (!accumulate) {
          std::fill(dgamma + begin, dgamma + end, 0.f);
          if constexpr (Stats::centred) std::fill(dbeta + begin, dbeta + end, 0.f);
        }
        add_dw(rows, d, begin, end, dy, x, stats, dgamma, dbeta);
      });
      return {};
    };
  });
}

const CpuKernel table[] = {{"layer_norm", bind<RowStats>},       {"add_layer_norm", bind_add<RowStats>},
                           {"layer_norm_dx", bind_dx<RowStats>}, {"layer_norm_dw", bind_dw<RowStats>},
                           {"rms_norm", bind<RmsStats>},         {"add_rms_norm", bind_add<RmsStats>},
                           {"rms_norm_dx", bind_dx<RmsStats>},   {"rms_norm_dw", bind_dw<RmsStats>}};

}  // namespace

std::span<const CpuKernel> layer_norm_cpu() { return table; }

}  // namespace lancet::ops
