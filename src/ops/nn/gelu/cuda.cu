#include "functors.h"
#include "ops/device/map.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* x = args.operands[0].as<T>();
    return device::bind_map(args, 1, device::Gelu{}, args.results[0].as<T>(), x);
  });
}

Kernel bind_dx(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    return device::bind_map(args, 2, device::GeluGradient{}, args.results[0].as<T>(), dy, x);
  });
}

const DeviceKernel table[] = {{"gelu", bind}, {"gelu_dx", bind_dx}};

}  // namespace

std::span<const DeviceKernel> gelu_cuda() { return table; }

}  // namespace lancet::ops
