// Iteration over tokens for the CPU kernels that move them to and from slots, and sums over a token's rows.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/cpu.h"
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

  // Calls f(token) for every token, on all threads. No two tokens share a row.
  template <class F>
  void for_each(F&& f) const {
    const std::int64_t grain =
        std::max<std::int64_t>(1, (1 << 14) / std::max<std::int64_t>(1, at.choices * std::int64_t(row_bytes)));
    backend::cpu::parallel_for(at.tokens, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) f(t);
    });
  }
};

// Sets out [D] to the sum over token t's choices of factor(k) times their rows, in f32, in the order of the choices,
// and rounds it once. A single row becomes single(k, row [D], out [D]); without rows, the sum is 0.
template <class T, class Factor, class Single>
void sum_rows(const SlotRows& rows, std::int64_t t, const T* slots, T* out, Factor factor, Single single) {
  constexpr std::int64_t piece = 512;  // columns that are summed at a time
  const TokenSlots& at = rows.at;
  const auto row = [&](std::int64_t k) { return slots + at.row(t, k) * rows.width; };
  const std::int64_t first = at.next(t, 0), second = at.next(t, first + 1);
  if (first == at.choices) return void(std::memset(static_cast<void*>(out), 0, rows.row_bytes));
  if (second >= at.choices) return single(first, row(first), out);
  float sums[piece];
  for (std::int64_t begin = 0; begin < rows.width; begin += piece) {
    const std::int64_t n = std::min(piece, rows.width - begin);
    cpu::map(
        n, sums, [f = factor(first)](float x) { return x * f; }, row(first) + begin);
    for (std::int64_t k = second, next = 0; k < at.choices; k = next) {
      next = at.next(t, k + 1);
      const auto add = [f = factor(k)](float sum, float x) { return sum + x * f; };
      if (next < at.choices)
        cpu::map(n, sums, add, sums, row(k) + begin);
      else
        cpu::map(n, out + begin, add, sums, row(k) + begin);
    }
  }
}

}  // namespace lancet::ops
