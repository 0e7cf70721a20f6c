// Merges the tensors of a bucket into contiguous ranges of memory, so that few calls reduce them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/ops/kernel.h"

namespace lancet::ops {

inline constexpr std::ptrdiff_t tensor_alignment = 64 / sizeof(float);  // of tensors in an arena, in floats

// True if only padding is between the end of the span and a tensor that begins at `next`. Tensors begin at multiples of
// the alignment, so no other tensor fits into a shorter gap.
inline bool follows(std::span<float> span, const float* next) {
  const std::ptrdiff_t gap = next - (span.data() + span.size());
  return gap == 0 || (gap > 0 && gap < tensor_alignment && reinterpret_cast<std::uintptr_t>(next) % 64 == 0);
}

// Tensors that follow each other in memory become one span, which one call reduces. The padding between them is sent
// too; its sums are not read.
inline std::vector<std::span<float>> merge(std::span<const TensorView> tensors) {
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

}  // namespace lancet::ops
