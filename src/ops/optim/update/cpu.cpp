// The loop of the updates is not cpu::map, because each element also updates its state.
#include <cmath>

#include "lancet/base/rounding.h"
#include "lancet/ops/schedule_layout.h"
#include "math.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

// The factor that an update multiplies the gradient with.
float gradient_scale(const float* numbers, bool clipped) { return clipped ? numbers[schedule::factor] : 1.0F; }
bool is_clipped(const TensorView& numbers) { return numbers.elements() == schedule::clipped; }

// The weights of an update: those of w, or those of this rank's flat shard of w (op.cpp). With a master copy the
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
    cpu::parallel_for(range_.size(), cpu::grain_elements,
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
    cpu::parallel_for(range_.size(), cpu::grain_elements,
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

// The settings of AdamW: attributes are read when the kernel is bound, the schedule when it runs.
struct AdamWSettings {
  explicit AdamWSettings(const KernelArgs& args)
      : beta1(args.attributes.real("beta1")),
        beta2(args.attributes.real("beta2")),
        eps(args.attributes.real("eps")),
        weight_decay(args.attributes.real("weight_decay")),
        numbers(args.operands[4].as<float>()),
        clipped(is_clipped(args.operands[4])) {}

  AdamW step() const {
    const double lr = numbers[schedule::lr], correction1 = numbers[schedule::correction1],
                 correction2 = numbers[schedule::correction2];
    return {.beta1 = float(beta1),
            .rest1 = float(1 - beta1),
            .beta2 = float(beta2),
            .rest2 = float(1 - beta2),
            .eps = float(eps),
            .scale = gradient_scale(numbers, clipped),
            .keep = float(1 - lr * weight_decay),
            .step = float(lr / correction1),
            .denominator = float(1 / std::sqrt(correction2))};
  }

  double beta1, beta2, eps, weight_decay;
  const float* numbers;
  bool clipped;
};

Kernel bind_adamw(const KernelArgs& args) {
  const AdamWSettings settings(args);
  float *m = args.operands[1].as<float>(), *v = args.operands[2].as<float>();
  const float* gradient = args.operands[3].as<float>();
  const Weights weights(args, 5);
  return [=]() -> Status {
    const AdamW step = settings.step();
    if (std::isnan(step.scale)) return {};
    weights.update(settings.numbers[schedule::step],
                   [=](float w, std::int64_t i) { return step(w, m[i], v[i], gradient[i]); });
    return {};
  };
}

Kernel bind_sgd(const KernelArgs& args) {
  float* velocity = args.operands[1].as<float>();
  const float *gradient = args.operands[2].as<float>(), *numbers = args.operands[3].as<float>();
  const bool clipped = is_clipped(args.operands[3]);
  const float momentum = float(args.attributes.real("momentum")),
              weight_decay = float(args.attributes.real("weight_decay"));
  const Weights weights(args, 4);
  return [=]() -> Status {
    const float scale = gradient_scale(numbers, clipped);
    if (std::isnan(scale)) return {};
    const Sgd step{momentum, weight_decay, numbers[schedule::lr], scale};
    weights.update(numbers[schedule::step], [=](float w, std::int64_t i) { return step(w, velocity[i], gradient[i]); });
    return {};
  };
}

Kernel bind_balance(const KernelArgs& args) {
  float* bias = args.operands[0].as<float>();
  const float *counts = args.operands[1].as<float>(), *numbers = args.operands[2].as<float>();
  const bool clipped = is_clipped(args.operands[2]);
  const std::int64_t experts = args.operands[0].elements();
  const float rate = float(args.attributes.real("rate"));
  return [=]() -> Status {
    if (std::isnan(gradient_scale(numbers, clipped))) return {};
    double total = 0;
    for (std::int64_t e = 0; e < experts; ++e) total += double(counts[e]);
    for (std::int64_t e = 0; e < experts; ++e) bias[e] = balanced(bias[e], counts[e], total, experts, rate);
    return {};
  };
}

const CpuKernel table[] = {{"adamw", bind_adamw}, {"sgd", bind_sgd}, {"balance_bias", bind_balance}};

}  // namespace

std::span<const CpuKernel> update_cpu() { return table; }

}  // namespace lancet::ops
