#include "ops/cpu.h"
#include "math.h"

namespace lancet::ops {

std::span<const CpuKernel> gelu_cpu() {
  static const CpuKernel table[] = {{"gelu", cpu::map_op<Gelu, 1>}, {"gelu_dx", cpu::map_op<GeluGradient, 2>}};
  return table;
}

}  // namespace lancet::ops
