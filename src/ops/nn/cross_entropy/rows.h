// What the loss ops do with a row of logits on the CPU.
#pragma once
#include <algorithm>
#include <cmath>

#include "lancet/base/math.h"
#include "ops/cpu.h"

namespace lancet::ops::cpu {

inline constexpr std::int32_t ignored_target = -1;  // adds nothing to the loss

inline void check_targets(const std::int32_t* targets, std::int64_t count, std::int64_t vocabulary) {
  for (std::int64_t r = 0; r < count; ++r)
    LANCET_CHECK(targets[r] >= ignored_target && targets[r] < vocabulary,
                 "target {} at {} is outside a vocabulary of {}", targets[r], r, vocabulary);
}

// The largest of n > 0 logits.
template <class T>
float row_max(std::int64_t n, const T* x) {
  alignas(64) float largest[block];
  std::fill_n(largest, block, to_f32(x[0]));
  std::int64_t i = 0;
  for (; i + block <= n; i += block) {
#pragma omp simd
    for (std::int64_t j = 0; j < block; ++j) {
      const float v = to_f32(x[i + j]);
      largest[j] = v > largest[j] ? v : largest[j];
    }
  }
  for (; i < n; ++i) largest[0] = std::max(largest[0], to_f32(x[i]));
  return *std::max_element(largest, largest + block);
}

// The sum of e^(x[i] - max).
template <class T>
float sum_of_exponentials(std::int64_t n, const T* x, float max) {
  return sum(n, [=](std::int64_t i) { return exp_f32(to_f32(x[i]) - max); });
}

// Adds the losses of `count` rows in their order, for any distribution over threads.
inline float mean_loss(std::int64_t count, const double* losses, std::int64_t total_tokens) {
  double sum = 0;
  for (std::int64_t r = 0; r < count; ++r) sum += losses[r];
  return float(sum / double(total_tokens));
}

}  // namespace lancet::ops::cpu
