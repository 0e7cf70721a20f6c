// How kernels on a GPU divide tokens among threads where each token has a number for every expert.
#pragma once
#include "ops/device/pack.h"

namespace lancet::ops::device {

// The token that a thread works on, with others.
struct TokenThread {
  std::int64_t t;
  bool exists;  // false beyond the last token: the thread then reads the last one, and writes nothing
  int member;   // the thread's place among those of the token
};

struct TokenThreads {
  static constexpr int threads = 256;
  static constexpr int least_width = 8;
  std::int64_t tokens;
  int width;  // threads per token: the least power of 2 that is no less than the number of experts, from 8 to 32

  static TokenThreads of(std::int64_t tokens, std::int64_t experts) {
    int width = least_width;
    while (width < warp_size && width < experts) width *= 2;
    return {tokens, width};
  }

  std::int64_t blocks() const { return divide_up(tokens, threads / width); }

  template <class Block>
  LANCET_DEVICE TokenThread token_thread(Block& block) const {
    const std::int64_t at = block.index() * (threads / width) + block.thread() / width;
    return {at < tokens ? at : tokens - 1, at < tokens, block.thread() % width};
  }
};

}  // namespace lancet::ops::device
