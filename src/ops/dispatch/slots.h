// Iteration over a route for the CPU kernels that move tokens to and from slots.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/ir/route_layout.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// Rows of `width` elements: tokens [T, width] and slots [E, C, width], related by a route.
struct SlotRows {
  ir::RouteLayout layout;
  const void* route;
  std::int64_t capacity, width;
  std::size_t row_bytes;

  SlotRows(const TensorView& route_view, const TensorView& slots)
      : layout{route_view.shape()[0], route_view.shape()[1]},
        route(route_view.data),
        capacity(slots.shape()[1]),
        width(slots.shape()[2]),
        row_bytes(std::size_t(width) * std::size_t(size_of(slots.dtype()))) {}

  // Calls f(token, row of [E*C] or -1 for a dropped token) for every token, on all threads. No two tokens share a row.
  template <class F>
  void for_each(F&& f) const {
    const std::int32_t *expert = layout.expert(route), *slot = layout.slot(route);
    const std::int64_t grain =
        std::max<std::int64_t>(1, (1 << 14) / std::max<std::int64_t>(1, std::int64_t(row_bytes)));
    backend::cpu::parallel_for(layout.tokens, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t)
        f(t, slot[t] == ir::RouteLayout::dropped ? std::int64_t{-1} : expert[t] * capacity + slot[t]);
    });
  }
};

}  // namespace lancet::ops
