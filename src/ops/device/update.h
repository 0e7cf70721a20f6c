// The loop of the optimizers' updates over flat memory.
#pragma once
#include "lancet/base/rounding.h"
#include "lancet/ops/schedule_layout.h"
#include "pack.h"

namespace lancet::ops::device {

// Updates n weights with `states` floats of state per weight. settings.from_schedule(numbers, scale) reads the numbers
// of the step on the device and returns a function (w, state..., gradient) -> new weight, which also updates the state.
// If the factor of the gradient is NaN, nothing is written. Weights are updated in f32: in `exact` (f32 weights or a
// master copy), with `rounded`, if any, rounded to nearest; or, without `exact`, in `rounded` by stochastic rounding.
// Bytes per weight: 4 * (3 + 2 * states), and 2 for the rounding.
template <class Settings, int states>
struct Update {
  static constexpr int threads = 256;
  float* exact;   // null: bf16 weights without a master copy
  bf16* rounded;  // null: f32 weights
  std::uint32_t seed;
  float* state[states];
  const float* gradient;
  const float* numbers;
  Settings settings;
  std::int64_t n;
  bool clipped, wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t start = (block.index() * threads + block.thread()) * 4;
    if (start >= n) return;
    const float scale = clipped ? numbers[schedule::factor] : 1.f;
    if (scale != scale) return;
    const auto now = settings.from_schedule(numbers, scale);
    const Part part = part_of_row<float>(start, n);
    Pack<float> w = exact ? load(exact + start, part, wide) : load_rounded(rounded + start, part), s[states];
    const Pack<float> g = load(gradient + start, part, wide);
#pragma unroll
    for (int k = 0; k < states; ++k) s[k] = load(state[k] + start, part, wide);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (states == 1)
        w.v[i] = now(w.v[i], s[0].v[i], g.v[i]);
      else
        w.v[i] = now(w.v[i], s[0].v[i], s[1].v[i], g.v[i]);
    }
    if (exact) store(exact + start, w, part, wide);
#pragma unroll
    for (int k = 0; k < states; ++k) store(state[k] + start, s[k], part, wide);
    if (rounded) store_rounded(rounded + start, w, part, start);
  }

  struct alignas(8) Half {
    bf16 v[4];
  };

  LANCET_DEVICE Pack<float> load_rounded(const bf16* p, Part part) const {
    Half half{};
    if (wide && part.whole<float>())
      half = *reinterpret_cast<const Half*>(p);
    else
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < part.last) half.v[i] = p[i];
    Pack<float> w;
#pragma unroll
    for (int i = 0; i < 4; ++i) w.v[i] = to_f32(half.v[i]);
    return w;
  }

  LANCET_DEVICE void store_rounded(bf16* p, const Pack<float>& w, Part part, std::int64_t start) const {
    const RoundingBits bits(seed, std::uint32_t(numbers[schedule::step]));
    Half half;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const Bf16Pair nearest = rounded_pair(w.v[i], w.v[i + 1]);
      half.v[i] = exact ? nearest.v[0] : round_stochastically(w.v[i], bits(start + i));
      half.v[i + 1] = exact ? nearest.v[1] : round_stochastically(w.v[i + 1], bits(start + i + 1));
    }
    if (wide && part.whole<float>()) {
      *reinterpret_cast<Half*>(p) = half;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < part.last) p[i] = half.v[i];
  }
};

// update(&w, &state..., gradient, schedule [, &master])
template <int states, class Settings>
Kernel bind_update(const KernelArgs& args, const Settings& settings) {
  const auto& operands = args.operands;
  const bool master = args.has(states + 3);
  Update<Settings, states> kernel{};
  const bool rounded = operands[0].type.dtype == DType::bf16;
  kernel.exact = master    ? operands[states + 3].template as<float>()
                 : rounded ? nullptr
                           : operands[0].template as<float>();
  kernel.rounded = rounded ? operands[0].template as<bf16>() : nullptr;
  kernel.seed = std::uint32_t(args.attributes.integer("rounding_seed", 0));
  for (int k = 0; k < states; ++k) kernel.state[k] = operands[std::size_t(1 + k)].template as<float>();
  kernel.gradient = operands[states + 1].template as<float>();
  kernel.numbers = operands[states + 2].template as<float>();
  kernel.settings = settings;
  kernel.n = operands[0].elements();
  kernel.clipped = operands[states + 2].elements() == schedule::clipped;
  kernel.wide =
      aligned(kernel.exact, kernel.gradient, kernel.state[0], kernel.state[states - 1]) && aligned(kernel.rounded);
  return run_steps(args.stream, Step{divide_up(kernel.n, 4 * kernel.threads), kernel});
}

}  // namespace lancet::ops::device
