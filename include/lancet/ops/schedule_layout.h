// The layout of the optimizer's schedule, the numbers of one step: f32[4] as the host writes it, or f32[5] with the
// factor of the gradient, which the op clipped_schedule appends.
#pragma once

namespace lancet::ops::schedule {

enum Field : int {
  lr = 0,
  correction1,     // 1 - beta1^t, where this is the t-th update, from 1: skipped steps update nothing
  correction2,     // 1 - beta2^t
  step,            // of the run, from 1
  factor,          // scales the gradient; NaN if its norm is not finite
  plain = factor,  // length without factor
  clipped,         // length with factor
};

}  // namespace lancet::ops::schedule
