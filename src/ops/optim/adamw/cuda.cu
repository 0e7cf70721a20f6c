#include "math.h"
#include "ops/device/update.h"

namespace lancet::ops {
namespace {

// The attributes of AdamW; the kernel reads the schedule when it runs.
struct Settings {
  float beta1, rest1, beta2, rest2, eps, weight_decay;

  LANCET_DEVICE AdamW from_schedule(const float* numbers, float scale) const {
    const float lr = numbers[schedule::lr];
    return {beta1,
            rest1,
            beta2,
            rest2,
            eps,
            scale,
            1.f - lr * weight_decay,
            lr / numbers[schedule::correction1],
            1.f / __builtin_sqrtf(numbers[schedule::correction2])};
  }
};

Settings settings(const KernelArgs& args) {
  const double beta1 = args.attributes.real("beta1"), beta2 = args.attributes.real("beta2");
  return {float(beta1),
          float(1 - beta1),
          float(beta2),
          float(1 - beta2),
          float(args.attributes.real("eps")),
          float(args.attributes.real("weight_decay"))};
}

Kernel bind_all(std::span<const KernelArgs> calls) { return device::bind_updates<2>(calls, settings); }
Kernel bind(const KernelArgs& args) { return bind_all({&args, 1}); }

const DeviceKernel table[] = {{.op = "adamw", .bind = bind, .bind_all = bind_all}};

}  // namespace

std::span<const DeviceKernel> adamw_cuda() { return table; }

}  // namespace lancet::ops
