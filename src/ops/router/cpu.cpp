#include "ops/cpu.h"

namespace lancet::ops {
namespace {

// router(x [B,S,D], w f32[E,D]) -> logits f32[B,S,E]. A logit is a dot product of its own: the order of its sum depends
// on D alone.
Kernel bind(const KernelArgs& args) {
  const float* w = args.operands[1].as<float>();
  float* logits = args.results[0].as<float>();
  const std::int64_t tokens = args.operands[0].shape().rows(), d = args.operands[0].shape().back();
  const std::int64_t experts = args.operands[1].shape()[0];
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(tokens, cpu::row_grain(d * experts), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t)
          for (std::int64_t e = 0; e < experts; ++e) {
            const T* row = x + t * d;
            const float* weight = w + e * d;
            logits[t * experts + e] = cpu::sum(d, [=](std::int64_t i) { return to_f32(row[i]) * weight[i]; });
          }
      });
      return {};
    };
  });
}

// router_dx(dlogits f32[B,S,E], w f32[E,D]) -> dx [B,S,D]
Kernel bind_dx(const KernelArgs& args) {
  const float *dlogits = args.operands[0].as<float>(), *w = args.operands[1].as<float>();
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const std::int64_t d = args.operands[1].shape()[1];
  return cpu::by_dtype(args.results[0].dtype(), [&]<class T>(T) -> Kernel {
    T* dx = args.results[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(tokens, cpu::row_grain(d * experts), [&](std::int64_t begin, std::int64_t end) {
        alignas(64) float sum[cpu::block];
        for (std::int64_t t = begin; t < end; ++t)
          for (std::int64_t i = 0; i < d; i += cpu::block) {
            const std::int64_t width = std::min(cpu::block, d - i);
            std::fill_n(sum, cpu::block, 0.f);
            for (std::int64_t e = 0; e < experts; ++e) {
              const float g = dlogits[t * experts + e];
              const float* weight = w + e * d + i;
#pragma omp simd
              for (std::int64_t j = 0; j < width; ++j) sum[j] += g * weight[j];
            }
            cpu::map(
                width, dx + t * d + i, [](float s) { return s; }, static_cast<const float*>(sum));
          }
      });
      return {};
    };
  });
}

// router_dw(dlogits f32[B,S,E], x [B,S,D] [, dw so far]) -> dw f32[E,D]. Threads share the features.
Kernel bind_dw(const KernelArgs& args) {
  const float* dlogits = args.operands[0].as<float>();
  float* dw = args.results[0].as<float>();
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const std::int64_t d = args.operands[1].shape().back();
  const bool accumulate = args.has(2);
  return cpu::by_dtype(args.operands[1].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[1].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(d, cpu::block, [&](std::int64_t begin, std::int64_t end) {
        if (!accumulate)
          for (std::int64_t e = 0; e < experts; ++e) std::fill(dw + e * d + begin, dw + e * d + end, 0.f);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t e = 0; e < experts; ++e) {
            const float g = dlogits[t * experts + e];
            const T* row = x + t * d;
            float* out = dw + e * d;
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i) out[i] += g * to_f32(row[i]);
          }
      });
      return {};
    };
  });
}

const CpuKernel table[] = {{"router", bind}, {"router_dx", bind_dx}, {"router_dw", bind_dw}};

}  // namespace

std::span<const CpuKernel> router_cpu() { return table; }

}  // namespace lancet::ops
