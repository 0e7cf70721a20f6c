// The numbers of a step that the host gives to the optimizer's updates: f32[4], or f32[5] with the gradient's factor,
// as clipped_schedule makes it.
#pragma once

namespace lancet::ops::schedule {

enum Place : int {
  lr = 0,
  correction1,  // 1 - beta1^t
  correction2,  // 1 - beta2^t
  step,         // t, from 1
  factor,       // of the gradient; NaN: its norm is not finite
  plain = factor,
  clipped,
};

}  // namespace lancet::ops::schedule
