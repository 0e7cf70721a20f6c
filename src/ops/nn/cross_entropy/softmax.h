// What the loss ops do with a row of logits on a GPU.
#pragma once
#include "lancet/base/math.h"
#include "ops/device/pack.h"

namespace lancet::ops::device {

inline constexpr std::int32_t ignored_target = -1;  // adds nothing to the loss

// An online softmax: the largest of the logits added, and the sum of e^(logit - largest).
struct Softmax {
  float largest = -__builtin_huge_valf(), sum = 0;

  template <class T>
  LANCET_DEVICE void add(const Floats<T>& x, int count) {
    float most = largest;
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i)
      if (i < count) most = Larger{}(x.v[i], most);
    if (most == -__builtin_huge_valf()) return;  // all logits are -infinity
    if (most > largest) {                        // rare once some packs have been seen
      sum *= exp_fast_f32(largest - most);
      largest = most;
    }
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i)
      if (i < count) sum += exp_fast_f32(x.v[i] - largest);
  }
  // Combines the threads of the block. For a thread without logits, whose sum is 0, largest - all may be NaN.
  template <class Block>
  LANCET_DEVICE void join(Block& block) {
    const float all = block.max(largest);
    sum = block.sum(sum == 0.f ? 0.f : sum * exp_fast_f32(largest - all));
    largest = all;
  }
};

// Calls f(start, part) for each pack of a row of n elements, on the thread that the pack belongs to. at_once: packs
// whose instructions are interleaved.
template <class T, int at_once = 2, class Block, class F>
LANCET_DEVICE void for_packs_of_row(Block& block, int n, F f) {
#pragma unroll at_once
  for (int start = block.thread() * Pack<T>::size; start < n; start += Block::threads() * Pack<T>::size)
    f(start, part_of_row<T>(start, n));
}

}  // namespace lancet::ops::device
