#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  void* data = args.operands[0].data;
  const std::size_t bytes = std::size_t(args.operands[0].elements()) * sizeof(float);
  backend::Stream* stream = args.stream;
  return [=]() -> Status { return stream->zero(data, bytes); };
}

const DeviceKernel table[] = {{"zero", bind}};

}  // namespace

std::span<const DeviceKernel> zero_cuda() { return table; }

}  // namespace lancet::ops
