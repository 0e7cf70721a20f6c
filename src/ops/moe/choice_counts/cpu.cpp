#include <algorithm>

#include "counted.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args, bool first_apart) {
  const choice_counts::Counted counted = choice_counts::counted_of(args, first_apart);
  const bool accumulates = args.has(1);
  float* counts = args.results[0].as<float>();  // [loads, bins]
  return [=]() -> Status {
    if (!accumulates) std::fill_n(counts, counted.loads * counted.bins, 0.f);
    for (std::int64_t load = 0; load < counted.loads; ++load)
      for (std::int64_t i = 0; i < counted.of_load; ++i)
        counts[load * counted.bins + counted.bin(load, i)] += 1.f;  // exact up to 2^24
    return {};
  };
}
Kernel bind_all(const KernelArgs& args) { return bind(args, false); }
Kernel bind_first(const KernelArgs& args) { return bind(args, true); }

const CpuKernel table[] = {{"choice_counts", bind_all}, {"first_choices", bind_first}};

}  // namespace

std::span<const CpuKernel> choice_counts_cpu() { return table; }

}  // namespace lancet::ops
