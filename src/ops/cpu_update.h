// The loop of the optimizers' updates. (No cpu::map: an element has state, and nothing depends on where it lies.)
#pragma once
#include "ops/cpu.h"

namespace lancet::ops::cpu {

// What the gradient is multiplied by, given an update's schedule.
inline float gradient_scale(const float* schedule, bool clipped) { return clipped ? schedule[3] : 1.0F; }

// The weights of an update: a master copy, if there is one, is what is updated, and w its rounding.
class Weights {
 public:
  Weights(const KernelArgs& args, int master)
      : count_(args.operands[0].elements()),
        exact_(args.operands[args.has(master) ? std::size_t(master) : 0].as<float>()),
        rounded_(args.has(master) ? args.operands[0].as<bf16>() : nullptr) {}

  // Every weight becomes new_value(its value, its index), over the threads.
  template <class F>
  void update(F new_value) const {
    parallel_for(count_, grain_elements,
                 [w = exact_, rounded = rounded_, new_value](std::int64_t begin, std::int64_t end) {
                   if (rounded) {  // NOLINT(bugprone-branch-clone): it does not see into omp loops
#pragma omp simd
                     for (std::int64_t i = begin; i < end; ++i) {
                       w[i] = new_value(w[i], i);
                       rounded[i] = from_f32<bf16>(w[i]);
                     }
                   } else {
#pragma omp simd
                     for (std::int64_t i = begin; i < end; ++i) w[i] = new_value(w[i], i);
                   }
                 });
  }

 private:
  std::int64_t count_;
  float* exact_;
  bf16* rounded_;
};

}  // namespace lancet::ops::cpu
