#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

Kernel set_zero(const KernelArgs& args, const TensorView& view) {
  return [stream = args.stream, data = view.data, bytes = std::size_t(ir::bytes(view.type))] {
    return stream->zero(data, bytes);
  };
}

Kernel bind(const KernelArgs& args) { return set_zero(args, args.operands[0]); }
Kernel bind_zeros(const KernelArgs& args) { return set_zero(args, args.results[0]); }

const DeviceKernel table[] = {{"zero", bind}, {"zeros", bind_zeros}};

}  // namespace

std::span<const DeviceKernel> zero_cuda() { return table; }

}  // namespace lancet::ops
