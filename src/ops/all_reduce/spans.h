// The tensors of a bucket as stretches of memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/ops/kernel.h"

namespace lancet::ops {

inline constexpr std::ptrdiff_t tensor_alignment = 64 / sizeof(float);  // of every tensor in an arena

// Whether nothing but padding lies between the span's end and a tensor that begins at `next`. Tensors begin at
// multiples of the alignment, so no other fits into a shorter gap.
inline bool follows(std::span<float> span, const float* next) {
  const std::ptrdiff_t gap = next - (span.data() + span.size());
  return gap == 0 || (gap > 0 && gap < tensor_alignment && reinterpret_cast<std::uintptr_t>(next) % 64 == 0);
}

// The tensors of a bucket lie one after the other: they go over the wire in one call. The padding between them travels
// too, and its sums are read by nobody.
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
