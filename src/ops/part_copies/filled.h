// Where the filled rows of each expert begin and end in a part's buffer, as its route or its rows say.
#pragma once
#include <cstdint>

#include "lancet/ir/route_layout.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

struct Filled {
  const std::int32_t *first, *last;  // of expert e at e * stride
  std::int64_t stride;

  LANCET_HD std::int64_t begin(std::int64_t expert) const { return first[expert * stride]; }
  LANCET_HD std::int64_t end(std::int64_t expert) const { return last[expert * stride]; }
};

inline Filled filled_of(const TensorView& view) {
  const void* data = view.data;
  if (view.dtype() == DType::route) {
    const ir::RouteLayout layout{view.shape()[0], view.shape()[1]};
    return {layout.begin(data), layout.end(data), 1};
  }
  const auto* rows = static_cast<const std::int32_t*>(data);
  return {rows, rows + view.shape()[1] - 1, view.shape()[1]};
}

}  // namespace lancet::ops
