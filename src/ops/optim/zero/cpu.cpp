#include <cstring>

#include "ops/cpu.h"

namespace lancet::ops {
namespace {

Kernel set_zero(const TensorView& view) {
  auto* data = view.as<std::byte>();
  const std::int64_t n = view.elements(), size = size_of(view.dtype());
  return [=]() -> Status {
    cpu::parallel_for(n, cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
      std::memset(data + begin * size, 0, std::size_t((end - begin) * size));
    });
    return {};
  };
}

Kernel bind(const KernelArgs& args) { return set_zero(args.operands[0]); }
Kernel bind_zeros(const KernelArgs& args) { return set_zero(args.results[0]); }

const CpuKernel table[] = {{"zero", bind}, {"zeros", bind_zeros}};

}  // namespace

std::span<const CpuKernel> zero_cpu() { return table; }

}  // namespace lancet::ops
