#include <memory>

#include "numbers.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  return [numbers = std::make_shared<const PaddedNumbers>(args)]() -> Status {
    for (std::int64_t i = 0; i < numbers->choices; ++i) numbers->set_choice(i);
    for (std::int64_t n = 0; n < numbers->padded; ++n) numbers->set_filled(n);
    return {};
  };
}

const CpuKernel table[] = {{"pad_experts", bind}};

}  // namespace

std::span<const CpuKernel> pad_experts_cpu() { return table; }

}  // namespace lancet::ops
