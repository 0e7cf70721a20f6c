#include <array>

#include "ops/cpu.h"
#include "wide_heads.h"

namespace lancet::ops {
namespace {

// Features of a row: [begin, begin + count) with the gammas and gradients that belong to them.
struct Segment {
  int which;  // 0: q, 1: k
  std::int64_t begin, count;
};
std::array<Segment, 2> segments(const WideHeads& heads) {
  return {Segment{0, 0, heads.queries}, Segment{1, heads.queries, heads.keys}};
}

// Calls f(row) for all rows on all threads.
template <class F>
void for_rows(std::int64_t rows, std::int64_t width, const F& f) {
  cpu::parallel_for(rows, cpu::row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) f(r);
  });
}

Kernel bind_squares(const KernelArgs& args) {
  const WideHeads heads(args.attributes);
  const std::int64_t rows = args.operands[0].shape().rows();
  auto* squares = args.results[0].as<float>();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[0].as<T>();
    return [=]() -> Status {
      for_rows(rows, heads.width(), [&](std::int64_t r) {
        for (const Segment& of : segments(heads)) {
          const T* x = qkv + r * heads.width() + of.begin;
          squares[2 * r + of.which] = cpu::sum(of.count, [=](std::int64_t i) { return to_f32(x[i]) * to_f32(x[i]); });
        }
      });
      return {};
    };
  });
}

Kernel bind_squares_dx(const KernelArgs& args) {
  const WideHeads heads(args.attributes);
  const std::int64_t rows = args.operands[1].shape().rows();
  const auto* dsquares = args.operands[0].as<float>();
  return cpu::by_dtype(args.operands[1].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[1].as<T>();
    T* dqkv = args.results[0].as<T>();
    return [=]() -> Status {
      for_rows(rows, heads.width(), [&](std::int64_t r) {
        const std::int64_t row = r * heads.width();
        for (const Segment& of : segments(heads)) {
          const float factor = 2.f * dsquares[2 * r + of.which];
          cpu::map(
              of.count, dqkv + row + of.begin, [=](float x) { return factor * x; }, qkv + row + of.begin);
        }
        std::fill_n(dqkv + row + heads.normed(), heads.keys, from_f32<T>(0.f));
      });
      return {};
    };
  });
}

Kernel bind(const KernelArgs& args) {
  const WideHeads heads(args.attributes);
  const float* gamma[2] = {args.operands[1].as<float>(), args.operands[2].as<float>()};
  const auto* squares = args.operands[3].as<float>();
  const std::int64_t rows = args.operands[0].shape().rows();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return [=, q = gamma[0], k = gamma[1]]() -> Status {
      for_rows(rows, heads.width(), [&](std::int64_t r) {
        const std::int64_t row = r * heads.width();
        for (const Segment& of : segments(heads)) {
          const float scale = heads.scale(squares + 2 * r, of.which);
          cpu::map(
              of.count, y + row + of.begin,
              [=](float x, float g) { return heads.limited(to_f32(from_f32<T>(x * scale)) * g); }, qkv + row + of.begin,
              of.which == 0 ? q : k);
        }
        cpu::map(
            heads.keys, y + row + heads.normed(), [=](float v) { return heads.limited(v); },
            qkv + row + heads.normed());
      });
      return {};
    };
  });
}

Kernel bind_dx(const KernelArgs& args) {
  const WideHeads heads(args.attributes);
  const float *q = args.operands[2].as<float>(), *k = args.operands[3].as<float>();
  const auto* squares = args.operands[4].as<float>();
  auto* dsquares = args.results[1].as<float>();
  const std::int64_t rows = args.operands[0].shape().rows();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *qkv = args.operands[1].as<T>();
    T* dqkv = args.results[0].as<T>();
    return [=]() -> Status {
      for_rows(rows, heads.width(), [&](std::int64_t r) {
        const std::int64_t row = r * heads.width();
        for (const Segment& of : segments(heads)) {
          const float scale = heads.scale(squares + 2 * r, of.which);
          const float* gamma = of.which == 0 ? q : k;
          const T *g = dy + row + of.begin, *x = qkv + row + of.begin;
          const auto own = [=](float d, float v, float s) {
            return heads.is_within(to_f32(from_f32<T>(v * scale)) * s) ? d * s : 0.f;
          };
          const float sum = cpu::sum(
              of.count, [=](std::int64_t i) { return own(to_f32(g[i]), to_f32(x[i]), gamma[i]) * to_f32(x[i]); });
          dsquares[2 * r + of.which] = heads.of_squares(squares + 2 * r, of.which, sum);
          cpu::map(
              of.count, dqkv + row + of.begin, [=](float d, float v, float s) { return scale * own(d, v, s); }, g, x,
              gamma);
        }
        cpu::map(
            heads.keys, dqkv + row + heads.normed(), [=](float d, float v) { return heads.is_within(v) ? d : 0.f; },
            dy + row + heads.normed(), qkv + row + heads.normed());
      });
      return {};
    };
  });
}

// Threads share the columns; each adds the rows in order.
Kernel bind_dw(const KernelArgs& args) {
  const WideHeads heads(args.attributes);
  const float *q = args.operands[2].as<float>(), *k = args.operands[3].as<float>();
  const auto* squares = args.operands[4].as<float>();
  float *dq = args.results[0].as<float>(), *dk = args.results[1].as<float>();
  const bool accumulate = args.has(5);
  const std::int64_t rows = args.operands[0].shape().rows();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *qkv = args.operands[1].as<T>();
    return [=]() -> Status {
      for (const Segment& of : segments(heads))
        cpu::parallel_for(of.count, cpu::block, [&](std::int64_t begin, std::int64_t end) {
          const float* gamma = of.which == 0 ? q : k;
          float* sums = of.which == 0 ? dq : dk;
          if (!accumulate) std::fill(sums + begin, sums + end, 0.f);
          for (std::int64_t r = 0; r < rows; ++r) {
            const T *g = dy + r * heads.width() + of.begin, *x = qkv + r * heads.width() + of.begin;
            const float scale = heads.scale(squares + 2 * r, of.which);
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i)
              sums[i] += heads.is_within(WideHeads::normed(x[i], scale, gamma[i]))
                             ? to_f32(g[i]) * (to_f32(x[i]) * scale)
                             : 0.f;
          }
        });
      return {};
    };
  });
}

const CpuKernel table[] = {{"wide_norm_squares", bind_squares},
                           {"wide_norm_squares_dx", bind_squares_dx},
                           {"wide_norm", bind},
                           {"wide_norm_dx", bind_dx},
                           {"wide_norm_dw", bind_dw}};

}  // namespace

std::span<const CpuKernel> wide_norm_cpu() { return table; }

}  // namespace lancet::ops
