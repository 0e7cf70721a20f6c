// Finds the first element of a tensor that is an infinity or a NaN.
#pragma once
#include <optional>

#include "lancet/ops/kernel.h"

namespace lancet::runtime {

struct BadElement {
  std::int64_t index = 0;
  float value = 0;
};

// Searches tensors of f32 and bf16; other types hold no numbers that can overflow.
std::optional<BadElement> first_non_finite(const ops::TensorView& tensor);

}  // namespace lancet::runtime
