#include "ops/device/update.h"
#include "math.h"

namespace lancet::ops {
namespace {

// The attributes of SGD; the kernel reads the schedule when it runs.
struct Settings {
  float momentum, weight_decay;

  LANCET_DEVICE Sgd from_schedule(const float* numbers, float scale) const {
    return {momentum, weight_decay, numbers[schedule::lr], scale};
  }
};

Kernel bind(const KernelArgs& args) {
  return device::bind_update<1>(
      args, Settings{float(args.attributes.real("momentum")), float(args.attributes.real("weight_decay"))});
}

const DeviceKernel table[] = {{"sgd", bind}};

}  // namespace

std::span<const DeviceKernel> sgd_cuda() { return table; }

}  // namespace lancet::ops
