#include "math.h"
#include "ops/device/map.h"

namespace lancet::ops {

std::span<const DeviceKernel> gelu_cuda() {
  static const DeviceKernel table[] = {{"gelu", device::map_op<Gelu, 1>}, {"gelu_dx", device::map_op<GeluGradient, 2>}};
  return table;
}

}  // namespace lancet::ops
