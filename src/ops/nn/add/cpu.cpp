#include <functional>

#include "ops/cpu.h"

namespace lancet::ops {

std::span<const CpuKernel> add_cpu() {
  static const CpuKernel table[] = {{"add", cpu::map_op<std::plus<float>, 2>},
                                    {"add_to", cpu::map_op<std::plus<float>, 2>}};
  return table;
}

}  // namespace lancet::ops
