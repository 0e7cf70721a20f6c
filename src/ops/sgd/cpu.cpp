#include "ops/cpu.h"
#include "ops/sgd/math.h"

namespace lancet::ops {
namespace {

// sgd(&w, &v, gradient, clip, schedule [, &master]). With a master copy it is what is updated, and w its rounding.
Kernel bind(const KernelArgs& args) {
  float* velocity = args.operands[1].as<float>();
  const float *gradient = args.operands[2].as<float>(), *clip = args.operands[3].as<float>(),
              *schedule = args.operands[4].as<float>();
  const float momentum = float(args.attributes.real("momentum")),
              weight_decay = float(args.attributes.real("weight_decay"));
  const std::int64_t n = args.operands[0].elements();
  float* w = args.operands[args.has(5) ? 5 : 0].as<float>();
  bf16* rounded = args.has(5) ? args.operands[0].as<bf16>() : nullptr;
  return [=]() -> Status {
    const Sgd step{momentum, weight_decay, schedule[0], clip[1]};
    cpu::parallel_for(n, cpu::grain_elements, [&, step](std::int64_t begin, std::int64_t end) {
      if (rounded) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) {
          w[i] = step(w[i], velocity[i], gradient[i]);
          rounded[i] = from_f32<bf16>(w[i]);
        }
      } else {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) w[i] = step(w[i], velocity[i], gradient[i]);
      }
    });
    return {};
  };
}

const CpuKernel table[] = {{"sgd", bind}};

}  // namespace

std::span<const CpuKernel> sgd_cpu() { return table; }

}  // namespace lancet::ops
