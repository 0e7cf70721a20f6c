#include <vector>

#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

constexpr std::ptrdiff_t alignment = 64 / sizeof(float);  // of every tensor in an arena

// Whether nothing but padding lies between the span's end and a tensor that begins at `next`. Tensors begin at
// multiples of the alignment, so no other fits into a shorter gap.
bool follows(std::span<float> span, const float* next) {
  const std::ptrdiff_t gap = next - (span.data() + span.size());
  return gap == 0 || (gap > 0 && gap < alignment && reinterpret_cast<std::uintptr_t>(next) % 64 == 0);
}

// The tensors of a bucket lie one after the other: they go over the wire in one call. The padding between them travels
// too, and its sums are read by nobody.
std::vector<std::span<float>> merge(std::span<const TensorView> tensors) {
  std::vector<std::span<float>> spans;
  for (const TensorView& tensor : tensors) {
    const std::span<float> values(tensor.as<float>(), std::size_t(tensor.elements()));
    if (!spans.empty() && follows(spans.back(), values.data()))
      spans.back() = {spans.back().data(), values.data() + values.size()};
    else
      spans.push_back(values);
  }
  return spans;
}

Kernel bind(const KernelArgs& args) {
  if (!args.comm || args.comm->size() == 1) return [] { return Status{}; };
  return [comm = args.comm, spans = merge(args.results)]() -> Status {
    for (std::span<float> values : spans) LANCET_TRY(comm->all_reduce_sum(values));
    return {};
  };
}

const CpuKernel table[] = {{"all_reduce", bind}};

}  // namespace

std::span<const CpuKernel> all_reduce_cpu() { return table; }

}  // namespace lancet::ops
