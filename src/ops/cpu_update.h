// The loop of the optimizers' updates. It is not cpu::map, because each element also updates its state.
#pragma once
#include "cpu.h"
#include "lancet/base/rounding.h"
#include "lancet/ops/schedule_layout.h"
#include "updated_range.h"

namespace lancet::ops::cpu {

// The factor that an update multiplies the gradient with.
inline float gradient_scale(const float* numbers, bool clipped) { return clipped ? numbers[schedule::factor] : 1.0F; }
inline bool is_clipped(const TensorView& numbers) { return numbers.elements() == schedule::clipped; }

// The weights of an update: those of w, or those of this rank's flat shard of w (ops/update.h). With a master copy the
// update changes the master, and w becomes its rounding; bf16 weights without a master copy are rounded stochastically,
// by random bits of the element's index in w.
class Weights {
 public:
  Weights(const KernelArgs& args, int master)
      : range_(updated_range(args)),
        exact_(exact_weights(args, master)),
        rounded_(args.operands[0].type.dtype == DType::bf16 ? args.operands[0].as<bf16>() + range_.begin : nullptr),
        seed_(std::uint32_t(args.attributes.integer("rounding_seed", 0))) {}

  // Sets every weight to new_value(its value, its index among these weights), on all threads. step (schedule::step)
  // seeds the rounding.
  template <class F>
  void update(float step, F new_value) const {
    if (!exact_) return update_rounded(RoundingBits(seed_, std::uint32_t(step)), new_value);
    parallel_for(range_.size(), grain_elements,
                 [w = exact_, rounded = rounded_, new_value](std::int64_t begin, std::int64_t end) {
                   if (rounded) {  // NOLINT(bugprone-branch-clone): the check ignores the bodies of omp loops
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
  float* exact_weights(const KernelArgs& args, int master) const {
    if (args.has(master)) return args.operands[std::size_t(master)].as<float>();
    return args.operands[0].type.dtype == DType::f32 ? args.operands[0].as<float>() + range_.begin : nullptr;
  }

  template <class F>
  void update_rounded(RoundingBits bits, F new_value) const {
    parallel_for(range_.size(), grain_elements,
                 [w = rounded_, first = range_.begin, bits, new_value](std::int64_t begin, std::int64_t end) {
#pragma omp simd
                   for (std::int64_t i = begin; i < end; ++i)
                     w[i] = round_stochastically(new_value(to_f32(w[i]), i), bits(first + i));
                 });
  }

  FlatRange range_;  // of w
  float* exact_;     // null: rounded_ are the weights themselves
  bf16* rounded_;
  std::uint32_t seed_;
};

}  // namespace lancet::ops::cpu
