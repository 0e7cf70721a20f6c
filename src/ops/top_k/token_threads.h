// How kernels on a GPU divide tokens among threads where each token has a number for every expert.
#pragma once
#include "ops/device/pack.h"

namespace lancet::ops::device {

// Threads per token: the least power of 2 from 8 to 32 that is no less than the number of experts, else 32.
inline int group_width(std::int64_t experts) {
  int width = 8;
  while (width < warp_size && width < experts) width *= 2;
  return width;
}

}  // namespace lancet::ops::device
