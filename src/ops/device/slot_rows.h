// Addressing for kernels that move tokens to and from slots: one warp per token.
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

}  // namespace lancet::ops::device
