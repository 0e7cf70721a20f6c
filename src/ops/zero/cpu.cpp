#include <cstring>

#include "ops/cpu.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  float* data = args.operands[0].as<float>();
  const std::int64_t n = args.operands[0].elements();
  return [=]() -> Status {
    cpu::parallel_for(n, cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
      std::memset(data + begin, 0, std::size_t(end - begin) * sizeof(float));
    });
    return {};
  };
}

const CpuKernel table[] = {{"zero", bind}};

}  // namespace

std::span<const CpuKernel> zero_cpu() { return table; }

}  // namespace lancet::ops
