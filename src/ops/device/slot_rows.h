// Addressing for kernels that move tokens to and from the slots of a route: one warp per token.
#pragma once
#include "lancet/ir/route_layout.h"
#include "pack.h"

namespace lancet::ops::device {

// Tokens [T, width] and slots [E, C, width], related by a route.
struct TokenRows {
  static constexpr int threads = 256;
  static constexpr int tokens_per_block = threads / warp_size;

  ir::RouteLayout layout;
  const void* route;
  std::int64_t capacity;

  TokenRows(const TensorView& route_view, const TensorView& slots)
      : layout{route_view.shape()[0], route_view.shape()[1]}, route(route_view.data), capacity(slots.shape()[1]) {}

  std::int64_t blocks() const { return divide_up(layout.tokens, tokens_per_block); }

  template <class Block>
  LANCET_DEVICE std::int64_t token(Block& block) const {
    return block.index() * tokens_per_block + block.warp();
  }
  // The row of [E*C] that holds token t; -1 if the token was dropped.
  LANCET_DEVICE std::int64_t row(std::int64_t t) const {
    const std::int32_t slot = layout.slot(route)[t];
    return slot == ir::RouteLayout::dropped ? -1 : layout.expert(route)[t] * capacity + slot;
  }
  LANCET_DEVICE float weight(std::int64_t t) const { return layout.weight(route)[t]; }
};

// Calls f(start, part) for each pack of the warp's row, on the thread that the pack belongs to.
template <class T, class Block, class F>
LANCET_DEVICE void for_row(Block& block, std::int64_t width, F f) {
#pragma unroll 4
  for (std::int64_t start = block.warp_lane() * Pack<T>::size; start < width; start += warp_size * Pack<T>::size)
    f(start, part_of_row<T>(start, width));
}

}  // namespace lancet::ops::device
