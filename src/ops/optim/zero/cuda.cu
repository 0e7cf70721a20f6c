#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

Kernel set_zero(const KernelArgs& args, const TensorView& view) {
  return [stream = args.stream, data = view.data, bytes = std::size_t(ir::bytes(view.type))] {
    return stream->zero(data, bytes);
  };
}

Kernel bind_zero(const KernelArgs& args) { return set_zero(args, args.operands[0]); }
Kernel bind_zero_zeros(const KernelArgs& args) { return set_zero(args, args.results[0]); }

}  // namespace

std::span<const DeviceKernel> zero_cuda() {
  static const DeviceKernel table[] = {{"zero", bind_zero}, {"zeros", bind_zero_zeros}};
  return table;
}

}  // namespace lancet::ops
