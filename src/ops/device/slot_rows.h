// Addressing and sums for kernels that move tokens to and from slots: one warp per token.
#pragma once
#include "ops/token_slots.h"
#include "pack.h"

namespace lancet::ops::device {

// Tokens [T, width] and the slots [E, C, width] that hold them.
struct TokenRows {
  static constexpr int threads = 256;
  static constexpr int tokens_per_block = threads / warp_size;

  TokenSlots at;

  TokenRows(const TensorView& expert, const TensorView& slot, const TensorView& slots, Share share)
      : at(expert, slot, slots, share) {}

  std::int64_t blocks() const { return divide_up(at.tokens, tokens_per_block); }

  template <class Block>
  LANCET_DEVICE std::int64_t token(Block& block) const {
    return block.index() * tokens_per_block + block.warp();
  }
};

// Calls f(start, part) for each pack of the warp's row, on the thread that the pack belongs to.
template <class T, class Block, class F>
LANCET_DEVICE void for_row(Block& block, std::int64_t width, F f) {
#pragma unroll 4
  for (std::int64_t start = block.warp_lane() * Pack<T>::size; start < width; start += warp_size * Pack<T>::size)
    f(start, part_of_row<T>(start, width));
}

// Sets out [D] to the sum over token t's choices of factor(k) times their rows of `slots`, in f32, in the order of the
// choices, and rounds it once; 0 without rows. Called by the token's warp.
template <class T, class Block, class Factor>
LANCET_DEVICE void sum_rows(Block& block, const TokenSlots& at, std::int64_t t, const T* slots, T* out,
                            std::int64_t width, bool wide, Factor factor) {
  const std::int64_t first = at.next(t, 0);
  const std::int64_t row = first < at.choices ? at.row(t, first) : -1;
  const float own = row < 0 ? 0.f : factor(first);
  for_row<T>(block, width, [&](std::int64_t start, Part part) {
    if (row < 0) return store(out + start, Pack<T>{}, part, wide);
    Floats<T> sum = to_floats(load(slots + row * width + start, part, wide));
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] *= own;
    for (std::int64_t k = first + 1; k < at.choices; ++k) {
      const std::int64_t further = at.row(t, k);
      if (further < 0) continue;
      const Floats<T> more = to_floats(load(slots + further * width + start, part, wide));
      const float scale = factor(k);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] += scale * more.v[i];
    }
    store(out + start, from_floats<T>(sum), part, wide);
  });
}

}  // namespace lancet::ops::device
