#include <cmath>

#include "math.h"
#include "ops/cpu_update.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  float* bias = args.operands[0].as<float>();
  const float *counts = args.operands[1].as<float>(), *numbers = args.operands[2].as<float>();
  const bool clipped = cpu::is_clipped(args.operands[2]);
  const std::int64_t experts = args.operands[0].elements();
  const float rate = float(args.attributes.real("rate"));
  return [=]() -> Status {
    if (std::isnan(cpu::gradient_scale(numbers, clipped))) return {};
    double total = 0;
    for (std::int64_t e = 0; e < experts; ++e) total += double(counts[e]);
    for (std::int64_t e = 0; e < experts; ++e) bias[e] = balanced(bias[e], counts[e], total, experts, rate);
    return {};
  };
}

const CpuKernel table[] = {{"balance_bias", bind}};

}  // namespace

std::span<const CpuKernel> balance_bias_cpu() { return table; }

}  // namespace lancet::ops
