// Iteration over tokens for the CPU kernels that move them to and from slots.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lancet/backend/cpu/parallel.h"
#include "ops/token_slots.h"

namespace lancet::ops {

// Rows of `width` elements: tokens [T, width] and the slots [E, C, width] that hold them.
struct SlotRows {
  TokenSlots at;
  std::int64_t width;
  std::size_t row_bytes;

  SlotRows(const TensorView& expert, const TensorView& slot, const TensorView& slots, Share share)
      : at(expert, slot, slots, share),
        width(slots.shape()[2]),
        row_bytes(std::size_t(width) * std::size_t(size_of(slots.dtype()))) {}

  // Calls f(token, row of [E*C] or -1) for every token, on all threads. No two tokens share a row.
  template <class F>
  void for_each(F&& f) const {
    const std::int64_t grain =
        std::max<std::int64_t>(1, (1 << 14) / std::max<std::int64_t>(1, std::int64_t(row_bytes)));
    backend::cpu::parallel_for(at.tokens, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) f(t, at.row(t));
    });
  }
};

}  // namespace lancet::ops
