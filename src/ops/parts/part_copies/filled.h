// Where the filled rows of each expert begin and end in a part's buffer.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// Reads filled slots i32[E,2] or rows i32[E,W+1]: of expert e the first entry and the last.
struct Filled {
  const std::int32_t* entries;
  std::int64_t width;

  explicit Filled(const TensorView& view) : entries(view.as<std::int32_t>()), width(view.shape()[1]) {}
  LANCET_HD std::int64_t begin(std::int64_t expert) const { return entries[expert * width]; }
  LANCET_HD std::int64_t end(std::int64_t expert) const { return entries[(expert + 1) * width - 1]; }
};

}  // namespace lancet::ops
