#include <cmath>

#include "math.h"
#include "ops/cpu_update.h"

namespace lancet::ops {
namespace {

// The settings of AdamW: attributes are read when the kernel is bound, the schedule when it runs.
struct Settings {
  explicit Settings(const KernelArgs& args)
      : beta1(args.attributes.real("beta1")),
        beta2(args.attributes.real("beta2")),
        eps(args.attributes.real("eps")),
        weight_decay(args.attributes.real("weight_decay")),
        numbers(args.operands[4].as<float>()),
        clipped(cpu::is_clipped(args.operands[4])) {}

  AdamW step() const {
    const double lr = numbers[schedule::lr], correction1 = numbers[schedule::correction1],
                 correction2 = numbers[schedule::correction2];
    return {.beta1 = float(beta1),
            .rest1 = float(1 - beta1),
            .beta2 = float(beta2),
            .rest2 = float(1 - beta2),
            .eps = float(eps),
            .scale = cpu::gradient_scale(numbers, clipped),
            .keep = float(1 - lr * weight_decay),
            .step = float(lr / correction1),
            .denominator = float(1 / std::sqrt(correction2))};
  }

  double beta1, beta2, eps, weight_decay;
  const float* numbers;
  bool clipped;
};

Kernel bind(const KernelArgs& args) {
  const Settings settings(args);
  float *m = args.operands[1].as<float>(), *v = args.operands[2].as<float>();
  const float* gradient = args.operands[3].as<float>();
  const cpu::Weights weights(args, 5);
  return [=]() -> Status {
    const AdamW step = settings.step();
    if (std::isnan(step.scale)) return {};
    weights.update(settings.numbers[schedule::step],
                   [=](float w, std::int64_t i) { return step(w, m[i], v[i], gradient[i]); });
    return {};
  };
}

const CpuKernel table[] = {{"adamw", bind}};

}  // namespace

std::span<const CpuKernel> adamw_cpu() { return table; }

}  // namespace lancet::ops
