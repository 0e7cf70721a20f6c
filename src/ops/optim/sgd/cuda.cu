#include "math.h"
#include "ops/device/update.h"

namespace lancet::ops {
namespace {

// The attributes of SGD; the kernel reads the schedule when it runs.
struct Settings {
  float momentum, weight_decay;

  LANCET_DEVICE Sgd from_schedule(const float* numbers, float scale) const {
    return {momentum, weight_decay, numbers[schedule::lr], scale};
  }
};

Settings settings(const KernelArgs& args) {
  return {float(args.attributes.real("momentum")), float(args.attributes.real("weight_decay"))};
}

Kernel bind_all(std::span<const KernelArgs> calls) { return device::bind_updates<1>(calls, settings); }
Kernel bind(const KernelArgs& args) { return bind_all({&args, 1}); }

const DeviceKernel table[] = {{.op = "sgd", .bind = bind, .bind_all = bind_all}};

}  // namespace

std::span<const DeviceKernel> sgd_cuda() { return table; }

}  // namespace lancet::ops
