#include <algorithm>

#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  const auto* expert = args.operands[0].as<std::int32_t>();  // [T*K]
  const std::int64_t n = args.operands[0].elements(), experts = args.results[0].elements();
  const bool accumulates = args.has(1);
  float* counts = args.results[0].as<float>();
  return [=]() -> Status {
    if (!accumulates) std::fill_n(counts, experts, 0.f);
    for (std::int64_t i = 0; i < n; ++i) counts[expert[i]] += 1.f;
    return {};
  };
}

const CpuKernel table[] = {{"choice_counts", bind}};

}  // namespace

std::span<const CpuKernel> choice_counts_cpu() { return table; }

}  // namespace lancet::ops
