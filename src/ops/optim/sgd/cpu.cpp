#include <cmath>

#include "math.h"
#include "ops/cpu_update.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  float* velocity = args.operands[1].as<float>();
  const float *gradient = args.operands[2].as<float>(), *numbers = args.operands[3].as<float>();
  const bool clipped = cpu::is_clipped(args.operands[3]);
  const float momentum = float(args.attributes.real("momentum")),
              weight_decay = float(args.attributes.real("weight_decay"));
  const cpu::Weights weights(args, 4);
  return [=]() -> Status {
    const float scale = cpu::gradient_scale(numbers, clipped);
    if (std::isnan(scale)) return {};
    const Sgd step{momentum, weight_decay, numbers[schedule::lr], scale};
    weights.update(numbers[schedule::step], [=](float w, std::int64_t i) { return step(w, velocity[i], gradient[i]); });
    return {};
  };
}

const CpuKernel table[] = {{"sgd", bind}};

}  // namespace

std::span<const CpuKernel> sgd_cpu() { return table; }

}  // namespace lancet::ops
